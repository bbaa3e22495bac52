"""One request of the byzantine worker: the right answer in pieces, for tricks to break."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from loadtests.judging.nonces import NONCE, right, tokens

GAP_S = 0.003
"""Between two writes, so that they arrive separately and are read before a reset discards unread data."""
PROMPT_TOKENS = 9
STATUS = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
LAST_CHUNK = b"0\r\n\r\n"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Json = dict[str, Any]


@dataclass
class Talk:
    """A trick writes anything; it calls `reset` or `finish` if the connection must not be reused."""

    writer: asyncio.StreamWriter
    kind: str
    model: str
    id: bytes
    asked: Json
    earlier: bytes = b""  # a whole earlier answer to another client, to be sent again
    count: int = 0  # requests on this connection before this one
    over: bool = False
    nonce: str = field(init=False)

    def __post_init__(self) -> None:
        found = NONCE.search(json.dumps(self.asked).encode())
        self.nonce = found[0].decode() if found else "nobody"

    @property
    def stream(self) -> bool:
        return bool(self.asked.get("stream", self.kind == "weir"))

    @property
    def max_tokens(self) -> int:
        return int(self.asked.get("max_tokens") or self.asked.get("max_completion_tokens") or 0)

    # ---- the right answer

    @property
    def answer(self) -> list[str]:
        """Its tokens, up to the limit."""
        return tokens(right(self.nonce))[: self.max_tokens or None]

    @property
    def finish_reason(self) -> str:
        """`stop`, or `length` at the limit."""
        return "stop" if len(self.answer) == len(tokens(right(self.nonce))) else "length"

    @property
    def pieces(self) -> list[bytes]:
        """The right body, event by event; a whole answer in two halves."""
        if self.stream:
            return [*self.words, *self.ends]
        whole = self.whole
        return [whole[: len(whole) // 2], whole[len(whole) // 2 :]]

    @property
    def words(self) -> list[bytes]:
        return [self.token(text) for text in self.answer]

    @property
    def started(self) -> list[bytes]:
        """An incomplete answer: the first three events, or the first half."""
        return self.pieces[:3] if self.stream else self.pieces[:1]

    @property
    def rest(self) -> list[bytes]:
        """What follows `started`; for an answer that is not streamed, all of it."""
        return self.pieces[len(self.started) if self.stream else 0 :]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def ends(self) -> list[bytes]:
        """The events that complete a stream."""
        if self.kind == "weir":
            return [self.done()]
        usage = {**self.chunk({}), "choices": [], "usage": self.usage}
        return [sse(self.chunk({}, self.finish_reason)), sse(usage), b"data: [DONE]\n\n"]

    @property
    def whole(self) -> bytes:
        """The answer in one piece."""
        if self.kind == "weir":
            return self.done(text="".join(self.answer))
        return json.dumps(self.completion()).encode()

    @property
    def usage(self) -> Json:
        return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(self.answer)}

    def token(self, text: str) -> bytes:
        return line({"event": "token", "text": text}) if self.kind == "weir" else sse(self.chunk({"content": text}))

    def done(self, **changed: Any) -> bytes:
        """The last event of a Weir worker, with these fields changed."""
        times = {"queue_ms": 0.1, "first_token_ms": 0.2, "total_ms": 0.3}
        event = {
            "event": "done", "finish_reason": self.finish_reason, "usage": self.usage, "timings": times,
            "batch_size": 1,
        }  # fmt: skip
        if not self.stream:
            event["text"] = "".join(self.answer)
        kept = {key: value for key, value in {**event, **changed}.items() if value is not ...}
        return line(kept)

    def chunk(self, delta: Json, finish: str | None = None, index: int = 0) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return {**self._named("chat.completion.chunk"), "choices": [choice]}

    def completion(self, finish: str | None = "", index: int = 0) -> Json:
        """A whole answer of an OpenAI-compatible server. `finish` overrides the reason."""
        message = {"role": "assistant", "content": "".join(self.answer)}
        finish = self.finish_reason if finish == "" else finish
        choice = {"index": index, "message": message, "finish_reason": finish}
        return {**self._named("chat.completion"), "choices": [choice], "usage": self.usage}

    def _named(self, object: str) -> Json:
        return {"id": "evil-1", "object": object, "created": 1, "model": self.model}

    # ---- the wire

    def head(self, *framing: bytes, status: bytes = STATUS, content_type: bytes = b"") -> bytes:
        """Status and headers; chunked unless `framing` is given."""
        usual = b"application/x-ndjson" if self.kind == "weir" else b"text/event-stream"
        kind = content_type or (usual if self.stream or self.kind == "weir" else b"application/json")
        named = b"x-request-id: " + self.id + b"\r\n"
        return status + b"content-type: " + kind + b"\r\n" + named + b"".join(framing or (CHUNKED,)) + b"\r\n"

    def answered(self) -> bytes:
        """The whole right answer as bytes."""
        return self.head() + chunks(*self.pieces) + LAST_CHUNK

    def beginning(self) -> bytes:
        """The head and `started`, in chunks."""
        return self.head() + chunks(*self.started)

    async def send(self, *data: bytes) -> None:
        """Write at once, and wait until it can be read."""
        self.writer.write(b"".join(data))
        await self.writer.drain()
        await asyncio.sleep(GAP_S)

    async def send_all(self) -> None:
        await self.send(self.answered())

    async def body(self, *pieces: bytes, **head: bytes) -> None:
        """Send a well-framed response with this body."""
        await self.send(self.head(length(sum(map(len, pieces))), **head), *pieces)

    def reset(self) -> None:
        """RST: data not yet read is lost."""
        self.over = True
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.writer.transport.abort()

    def finish(self) -> None:
        """FIN: the connection closes normally."""
        self.over = True
        self.writer.close()


def line(event: Json) -> bytes:
    return json.dumps(event).encode() + b"\n"


def sse(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def chunks(*pieces: bytes) -> bytes:
    """Each piece as a chunk."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def length(size: int) -> bytes:
    return b"content-length: %d\r\n" % size
