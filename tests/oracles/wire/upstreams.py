"""What the router says to workers of both kinds and to retrieval, and what it makes of what they say.

Lines that begin with `~>` are what the router sent to them, and `~<` is what it was answered.
"""

from __future__ import annotations

import asyncio
import errno
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.oracles.wire.stand import TEXTS, standing
from tests.oracles.wire.transcript import Transcript, connect, post, request, written

CHAT, TEXT, ASK = TEXTS
VECTORS = "/v1/embeddings"
PORT = 7001


def _fixed(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _json(value: Any, status: str = "200 OK", *headers: str) -> bytes:
    return _fixed(json.dumps(value).encode(), status, *headers)


def _events(*events: bytes, kind: bytes = b"text/event-stream", end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + end


def _chunk(**fields: Any) -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": None, **fields}
    return b"data: " + json.dumps({"id": "up", "model": "m", "choices": [choice]}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
SAID = {"role": "assistant", "content": "A weir."}
WHOLE = {"id": "up", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "message": SAID, "finish_reason": "stop"}], "usage": USAGE}  # fmt: skip
OF_TEXT = {"id": "up", "object": "text_completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "text": "A weir.", "finish_reason": "stop"}], "usage": USAGE}  # fmt: skip
WORDS = (_chunk(delta={"role": "assistant", "content": "A "}), _chunk(delta={"content": "weir."}))
TWO = {**WHOLE, "choices": [
    {"index": index, "message": SAID, "finish_reason": "stop"} for index in range(2)]}  # fmt: skip
SECOND = _chunk(index=1, delta={"content": "Another."}, finish_reason="length")
END = (
    _chunk(finish_reason="stop"),
    b"data: " + json.dumps({"id": "up", "model": "m", "choices": [], "usage": USAGE}).encode() + b"\n\n",
    b"data: [DONE]\n\n",
)
MODELS = _json({"object": "list", "data": [{"id": "m", "object": "model"}]})
DONE = b'{"event":"done","finish_reason":"stop","usage":{"prompt_tokens":4,"completion_tokens":2},' + (
    b'"timings":{"queue_ms":0,"first_token_ms":1,"total_ms":2},"batch_size":1,"text":%b}\n'
)
STATUS = _json({
    "name": "w", "engine": "e", "models": ["m"], "slots": 4, "queue_size": 4, "running": 0, "waiting": 0,
    "draining": False, "step_ms": 1.0,
})  # fmt: skip


@dataclass
class Scripted:
    """A server that answers a look with `look`, and everything else with `script`; it keeps what was said."""

    look: bytes
    script: bytes = b""
    cut: bool = False
    names: bool = False
    """Whether an answer names its request, as a worker of Weir's own does."""
    said: list[str] = field(default_factory=list)

    def connected(self) -> asyncio.Protocol:
        return _Connection(self)


class _Connection(asyncio.Protocol):
    def __init__(self, server: Scripted) -> None:
        self._server = server
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if not end or len(body) < length:
            return
        asked, self._data = self._data, b""
        if asked.startswith(b"GET "):
            self._transport.write(self._server.look)
            return
        server = self._server
        answer = server.script
        if server.names and b"\r\nx-request-id: " not in answer:
            answer = answer.replace(b"\r\n", b"\r\nx-request-id: mine\r\n", 1)
        server.said += [f"~> {line}".rstrip(" ") for line in written(asked)]
        server.said += [f"~< {line}".rstrip(" ") for line in written(answer)]
        self._transport.write(answer)
        if server.cut:
            self._transport.close()


OPENAI: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "a chat": (CHAT, {}, _json(WHOLE)),
    "a chat, streamed": (CHAT, {"stream": True}, _events(*WORDS, *END)),
    "a text": (TEXT, {}, _json(OF_TEXT)),
    "a question": (ASK, {}, _json(WHOLE)),
    "a question, streamed": (ASK, {"stream": True}, _events(*WORDS, *END)),
    "a chat with fields of its own": (
        CHAT, {"tools": [], "logprobs": True, "n": 1, "seed": 3, "stop": "x", "temperature": 0.1}, _json(WHOLE)),
    "a chat of more than one answer": (CHAT, {"best_of": 3}, _json(WHOLE)),
    "a chat of two answers": (CHAT, {"n": 2}, _json(TWO)),
    "a chat of two answers, streamed": (CHAT, {"n": 2, "stream": True}, _events(*WORDS, SECOND, *END)),
    "a chat with a picture": (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]}, _json(WHOLE)),
    "two texts": (TEXT, {"prompt": ["a", "b"], "max_tokens": 8}, _json(OF_TEXT)),
    "vectors": (VECTORS, {"input": [[1, 2]], "model": "m"},
                _json({"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 2}})),
    "a field that is kept back": (CHAT, {"priority": -1}, _json(WHOLE)),
    "the worker refuses": (
        CHAT, {}, _json({"error": {"message": "full"}}, "429 Too Many Requests", "retry-after: 3")),
    "the worker is not ready": (CHAT, {}, _json({"error": {"message": "loading"}}, "503 Service Unavailable")),
    "the worker blames the request": (
        CHAT, {}, _json({"error": {"message": "too long", "param": "messages", "code": "context_length_exceeded"}},
                        "400 Bad Request")),
    "the worker fails": (CHAT, {}, _json({"error": {"message": "at 10.0.0.1"}}, "500 Internal Server Error")),
    "an answer that is no JSON": (CHAT, {}, _fixed(b"hello")),
    "an answer that is cut": (CHAT, {}, _json(WHOLE)[:-9]),
    "a stream without an end": (CHAT, {"stream": True}, _events(*WORDS)),
    "a stream that is cut": (CHAT, {"stream": True}, _events(*WORDS, end=b"")),
    "an error in a stream": (
        CHAT, {"stream": True}, _events(*WORDS, b'data: {"error": {"message": "out of memory"}}\n\n', *END)),
}  # fmt: skip


async def openai() -> str:
    """A worker that speaks OpenAI's API."""
    told = Transcript("The router before a worker that speaks OpenAI's API")
    loop = asyncio.get_running_loop()
    server = Scripted(MODELS)
    await loop.create_server(server.connected, "127.0.0.1", PORT)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "workers.yaml"
        file.write_text(
            f"workers: [{{name: up, kind: openai, url: 'http://127.0.0.1:{PORT}/v1', slots: 4, models: [m]}}]"
        )
        for name, (route, fields, script) in OPENAI.items():
            async with standing(told, workers_file=file, default_ttft_ms=1000) as stand:
                server.script, server.said, server.cut = script, [], "cut" in name
                body = fields if route == VECTORS else {**TEXTS[route], "max_tokens": 8, **fields}
                asked = post(route, body, x_request_id="mine")
                await stand.say(name, asked, within_s=5)
                told.lines += server.said
    return told.text


WEIR: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "a chat": (CHAT, {}, _fixed(DONE % b'"A weir."')),
    "a chat, streamed": (
        CHAT, {"stream": True},
        _events(b'{"event":"token","text":"A weir."}\n' + DONE % b"null", kind=b"application/x-ndjson")),
    "a text": (TEXT, {"temperature": 0.1, "top_p": 0.5, "seed": 3, "stop": ["x"]}, _fixed(DONE % b'"A weir."')),
    "a question": (ASK, {}, _fixed(DONE % b'"A weir."')),
    "an answer to another": (CHAT, {}, _fixed(DONE % b'"A weir."', "200 OK", "x-request-id: another")),
    "an event that is none": (CHAT, {}, _fixed(b'{"event":"sung"}\n')),
}  # fmt: skip


async def weir() -> str:
    """A worker of Weir's own."""
    told = Transcript("The router before a worker of Weir's own")
    loop = asyncio.get_running_loop()
    server = Scripted(STATUS, names=True)
    await loop.create_server(server.connected, "127.0.0.1", PORT)
    for name, (route, fields, script) in WEIR.items():
        ours = standing(told, workers=f"http://127.0.0.1:{PORT}", internal_token="a-token-of-our-own-services")
        async with ours as stand:
            server.script, server.said = script, []
            await stand.say(name, post(route, {**TEXTS[route], "max_tokens": 8, **fields}, x_request_id="mine"))
            told.lines += server.said
    async with standing(told, workers=f"http://127.0.0.1:{PORT}", probe_interval_s=60) as stand:
        await asyncio.sleep(30)  # until the connection of the first look is closed
        client = await connect(stand.port)
        with mock.patch.object(loop, "create_connection", _no_socket):
            told.lines += ["", "=== the system gives the router no socket"]
            client.transport.write(post(CHAT, TEXTS[CHAT]))
            await told.listen(client)
    return told.text


async def _no_socket(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


RETRIEVED = _json({"source": "db", "results": [
    {"chunk_id": "a#0", "doc_id": "a", "version": 1, "text": "A weir holds a river.", "distance": 0.2}]})  # fmt: skip


async def retrieval() -> str:
    """Retrieval, as the router asks it; and the prompt that comes of what it finds."""
    told = Transcript("The router before retrieval")
    loop = asyncio.get_running_loop()
    store, worker = (
        Scripted(_json({"degraded": []}), RETRIEVED),
        Scripted(STATUS, _fixed(DONE % b'"A weir."'), names=True),
    )
    await loop.create_server(store.connected, "127.0.0.1", PORT)
    await loop.create_server(worker.connected, "127.0.0.1", PORT + 1)
    where = {"workers": f"http://127.0.0.1:{PORT + 1}", "retrieval_url": f"http://127.0.0.1:{PORT}"}
    async with standing(told, internal_token="a-token-of-our-own-services", **where) as stand:

        async def say(name: str, asked: bytes) -> None:
            store.said, worker.said = [], []
            await stand.say(name, asked)
            told.lines += [*store.said, *worker.said]

        await say("a question", post("/ask", {"query": "why?", "top_k": 3, "cache_ttl_s": 5}, x_request_id="mine"))
        store.script = _json({"error": {"message": "x", "code": "internal_error"}}, "500 Internal Server Error")
        await say("a question while retrieval fails", post("/ask", {"query": "why?"}, x_request_id="mine"))
        store.script = _fixed(b"hello")
        await say("a question while it talks nonsense", post("/ask", {"query": "why?"}, x_request_id="mine"))
        store.script = _json({"model": "e", "dimensions": 2, "vectors": [[1.0, 0.0]], "tokens": 1})
        await say("vectors", post("/v1/embeddings", {"input": "one"}, x_request_id="mine"))
        store.script = _json({"id": "a/b", "state": "added", "title": "A", "version": 1, "chunks": 1}, "201 Created")
        await say(
            "a document with a space in its id", request("PUT", "/documents/a%20b", {"text": "A"}, x_request_id="mine")
        )
        await say("a document by its path", request("PUT", "/documents/a%2Fb", {"text": "A"}, x_request_id="mine"))
    return told.text
