"""Any OpenAI-compatible server as a worker: vLLM, SGLang, llama.cpp, another Weir.

The client's own bytes go on, and the server's own bytes come back, wherever the client asked in the same format: only
what Weir must know (usage, the end, errors) is read. Streams are relayed in whole events. From the finishing event on
they are held until `[DONE]`, so that a stream which was cut is never taken for one that ended.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.contracts.generate import Message
from services.contracts.openai import Usage
from services.router.call import Attempt, Busy, Call, Delta, End, Format, Probe, Whole, WorkerFailed
from services.runtime.errors import BadInput
from services.runtime.keepalive import Pool, Reply, Truncated, UpstreamError

MAX_ANSWER_BYTES = 16 * 1_048_576
MAX_EVENT_BYTES = 1_048_576
MAX_ERROR_BYTES = 65_536
DEFAULT_DELAY_MS = 100.0

_encode = msgspec.json.Encoder().encode


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Text | None = None
    delta: _Text | None = None
    text: str | None = None

    def words(self) -> str:
        said = self.message or self.delta
        return (said.content if said else self.text) or ""


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: Usage | None = None


_answer = msgspec.json.Decoder(_Answer)


class OpenAIUpstream:
    """One OpenAI-compatible server. `url` of the pool ends in the API's root, usually `/v1`."""

    def __init__(self, pool: Pool, slots: int, lookahead: int, models: tuple[str, ...], api_key: str | None) -> None:
        self._pool = pool
        self._slots = slots
        self._places = slots + lookahead
        self._models = models
        self._headers = [(b"content-type", b"application/json")]
        if api_key:
            self._headers.append((b"authorization", b"Bearer " + api_key.encode()))

    async def whole(self, call: Call, attempt: Attempt) -> Whole:
        reply = await self._post(call, attempt)
        with reply:
            body = await reply.read(MAX_ANSWER_BYTES)
        try:
            answer = _answer.decode(body)
            choice = answer.choices[0]
        except (msgspec.MsgspecError, IndexError) as error:
            raise UpstreamError(f"the worker's answer is not understood: {error}") from None
        end = _end(choice.finish_reason or "stop", answer.usage)
        return Whole(choice.words(), end, raw=body)

    async def open(self, call: Call, attempt: Attempt) -> OpenAIStream:
        return OpenAIStream(await self._post(call, attempt), call)

    async def _post(self, call: Call, attempt: Attempt) -> Reply:
        target = b"/completions" if call.format is Format.COMPLETIONS else b"/chat/completions"
        headers = [
            *self._headers,
            (b"x-request-id", call.id.encode()),
            (b"x-weir-deadline-ms", b"%d" % attempt.remaining_ms),
        ]
        reply = await self._pool.request(b"POST", target, body=_encode(request_body(call)), headers=headers)
        if reply.status == 200:
            return reply
        with reply:
            raise _refusal(reply, await reply.read(MAX_ERROR_BYTES))

    async def cancel(self, attempt_id: str) -> None:
        """OpenAI has no such call: the closed connection is the message."""

    async def probe(self) -> Probe:
        reply = await self._pool.request(b"GET", b"/models", headers=self._headers)
        with reply:
            body = await reply.read(MAX_ANSWER_BYTES)
        # Any answer is a sign of life: not every server has a /models that works.
        return Probe(self._slots, self._places, self._models or _model_ids(body))

    def give_up(self, why: str) -> None:
        self._pool.fail_unheard(why)

    def close(self) -> None:
        self._pool.close()


def request_body(call: Call) -> dict[str, Any]:
    """The client's own fields, with the model, a bound on the answer, and exact usage asked for."""
    body: dict[str, Any] = dict(call.body or {})
    body.pop("tenant", None)
    body["model"] = call.model
    if "max_completion_tokens" not in body or body["max_completion_tokens"] is None:
        body["max_tokens"] = call.max_tokens
    if call.format is Format.ASK:
        body = {"model": call.model, "max_tokens": call.max_tokens, "messages": _plain(call.messages or [])}
    body["stream"] = call.stream
    if call.stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    return body


def _plain(messages: list[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _end(finish_reason: str, usage: Usage | None) -> End:
    if usage is None:
        return End(finish_reason, 0, 0)
    return End(finish_reason, usage.prompt_tokens, usage.completion_tokens)


def _model_ids(body: bytes) -> tuple[str, ...]:
    try:
        return tuple(str(model["id"]) for model in msgspec.json.decode(body)["data"])
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise UpstreamError(f"/models is not understood ({error}); name its models in the worker list") from None


def _refusal(reply: Reply, body: bytes) -> Exception:
    if reply.status in (429, 503):
        return Busy(_delay_ms(reply))
    if reply.status in (400, 404, 413, 415, 422):
        message, param, code = _reason(body)
        return BadInput(message, param, status=reply.status, code=code)
    return WorkerFailed(f"the worker answered {reply.status}")


def _delay_ms(reply: Reply) -> float:
    for name, unit_ms in ((b"retry-after-ms", 1.0), (b"retry-after", 1000.0)):
        value = reply.header(name)
        if value is not None and value.isdigit():
            return float(value) * unit_ms
    return DEFAULT_DELAY_MS


def _reason(body: bytes) -> tuple[str, str | None, str | None]:
    try:
        error = msgspec.json.decode(body)["error"]
        return str(error["message"]), error.get("param"), error.get("code")
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return "the worker found the request invalid", None, None


class OpenAIStream:
    """Server-sent events of one answer, relayed in whole events."""

    def __init__(self, reply: Reply, call: Call) -> None:
        self.end: End | None = None
        self.tail: list[bytes] = []
        self._reply = reply
        self._partial = b""
        self._raw = call.format is not Format.ASK
        self._wants_usage = call.include_usage
        self._finish_reason: str | None = None
        self._usage: Usage | None = None

    async def next(self) -> Delta | None:
        while self.end is None:
            piece = await self._reply.next_piece()
            if piece is None:
                raise Truncated("the worker's stream ended without [DONE]")
            delta = self._take(piece)
            if delta is not None:
                return delta
        return None

    def _take(self, piece: bytes) -> Delta | None:
        data = self._partial + piece if self._partial else piece
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        cut = data.rfind(b"\n\n") + 2
        if cut == 1:
            cut = 0
        block, self._partial = data[:cut], data[cut:]
        if len(self._partial) > MAX_EVENT_BYTES:
            raise UpstreamError(f"an event exceeds {MAX_EVENT_BYTES} bytes")
        if not block:
            return None
        if self._raw and self._is_plain(block):
            return Delta(raw=block)
        return self._read(block)

    def _is_plain(self, block: bytes) -> bool:
        """Only text so far: nothing in it that ends, counts or fails."""
        return (
            self._finish_reason is None
            and b'"finish_reason":"' not in block
            and b'"finish_reason": "' not in block
            and b"[DONE]" not in block
            and b'"error"' not in block
            and b'"choices":[]' not in block
            and b'"choices": []' not in block
            and not block.startswith((b"event:", b":"))
        )

    def _read(self, block: bytes) -> Delta | None:
        texts: list[str] = []
        passed: list[bytes] = []
        for event in block.split(b"\n\n"):
            data = b"\n".join(line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if not data:
                continue  # a comment, or the end of the block
            if self.end is not None:
                raise UpstreamError("the worker sent an event after [DONE]")
            if data == b"[DONE]":
                self._done()
                continue
            self._read_event(data, texts, passed)
        if self._raw:
            return Delta(raw=b"".join(passed)) if passed else None
        return Delta("".join(texts)) if texts else None

    def _read_event(self, data: bytes, texts: list[str], passed: list[bytes]) -> None:
        try:
            answer = _answer.decode(data)
        except msgspec.MsgspecError:
            message, _, _ = _reason(data)
            raise WorkerFailed(f"the worker failed in its stream: {message}") from None
        self._usage = answer.usage or self._usage
        choice = answer.choices[0] if answer.choices else None
        if choice is not None:
            texts.append(choice.words())
            self._finish_reason = choice.finish_reason or self._finish_reason
        if not self._raw or (choice is None and not self._wants_usage):
            return  # told in our own words; or asked for by us, not by the client
        if self._finish_reason is None:
            passed.append(b"data: " + data + b"\n\n")
        else:
            self.tail.append(data)

    def _done(self) -> None:
        if self._finish_reason is None:
            raise Truncated("the worker's stream ended without a finish reason")
        self.end = _end(self._finish_reason, self._usage)
        self._reply.linger()

    def close(self) -> None:
        self._reply.close()
