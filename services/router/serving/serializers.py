"""Encodes answers: OpenAI's chat and text formats, and Weir's own `/ask`.

Answers of workers that speak the client's format pass through. A stream's last event has the field `weir`, with the
timings that a plain answer has in `Server-Timing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from services.contracts import answer as ask
from services.contracts.openai import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    TextChoice,
    TextCompletion,
    Timing,
    Usage,
)
from services.router.parsing.parsed import Format
from services.router.request import InferenceRequest
from services.router.serving.timing import timing
from services.router.upstreams.call import Delta, End, Whole

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(value: Any, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode("ascii") + b"\n"
    return head + b"data: " + _encode(value) + b"\n\n"


def _usage(end: End) -> Usage:
    return Usage(end.prompt_tokens, end.completion_tokens, end.prompt_tokens + end.completion_tokens)


class Serializer(Protocol):
    """One format. `created` is in Unix seconds."""

    def whole(self, request: InferenceRequest, answer: Whole, now: float, created: int) -> bytes:
        """The body of a plain answer."""

    def head(self, request: InferenceRequest, created: int) -> bytes:
        """The first bytes of a stream; may be empty."""

    def delta(self, request: InferenceRequest, delta: Delta, created: int) -> bytes:
        """The event of one delta."""

    def last(self, request: InferenceRequest, end: End, now: float, created: int) -> bytes:
        """The last events of a stream, `[DONE]` included."""


class ChatSerializer:
    """POST /v1/chat/completions."""

    def whole(self, request: InferenceRequest, answer: Whole, now: float, created: int) -> bytes:
        end = answer.end
        choice = ChatChoice(0, AnswerMessage("assistant", answer.text), end.finish_reason)
        return _encode(ChatCompletion(request.id, created, request.model, [choice], _usage(end)))

    def head(self, request: InferenceRequest, created: int) -> bytes:
        return self._chunk(request, created, ChatDelta(role="assistant", content=""))

    def delta(self, request: InferenceRequest, delta: Delta, created: int) -> bytes:
        return self._chunk(request, created, ChatDelta(content=delta.text))

    def _chunk(self, request: InferenceRequest, created: int, delta: ChatDelta) -> bytes:
        return event(ChatChunk(request.id, created, request.model, [ChatChunkChoice(0, delta)]))

    def last(self, request: InferenceRequest, end: End, now: float, created: int) -> bytes:
        choice = ChatChunkChoice(0, ChatDelta(), end.finish_reason)
        finish = ChatChunk(request.id, created, request.model, [choice])
        counts = ChatChunk(request.id, created, request.model, [], usage=_usage(end))
        events = [finish, counts] if request.parsed.include_usage else [finish]
        events[-1] = msgspec.structs.replace(events[-1], weir=timing(request, now))
        return b"".join([*map(event, events), DONE])


class TextSerializer:
    """POST /v1/completions."""

    def whole(self, request: InferenceRequest, answer: Whole, now: float, created: int) -> bytes:
        choice = TextChoice(0, answer.text, answer.end.finish_reason)
        return _encode(TextCompletion(request.id, created, request.model, [choice], usage=_usage(answer.end)))

    def head(self, request: InferenceRequest, created: int) -> bytes:
        return b""

    def delta(self, request: InferenceRequest, delta: Delta, created: int) -> bytes:
        return event(TextCompletion(request.id, created, request.model, [TextChoice(0, delta.text)]))

    def last(self, request: InferenceRequest, end: End, now: float, created: int) -> bytes:
        finish = TextCompletion(request.id, created, request.model, [TextChoice(0, "", end.finish_reason)])
        counts = TextCompletion(request.id, created, request.model, [], usage=_usage(end))
        events = [finish, counts] if request.parsed.include_usage else [finish]
        events[-1] = msgspec.structs.replace(events[-1], weir=timing(request, now))
        return b"".join([*map(event, events), DONE])


class AskSerializer:
    """POST /ask. A stream is `token` events, one `answer` event with the whole reply, then `[DONE]`."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def whole(self, request: InferenceRequest, answer: Whole, now: float, created: int) -> bytes:
        return _encode(self._reply(request, answer.text, answer.end, now))

    def head(self, request: InferenceRequest, created: int) -> bytes:
        return b""

    def delta(self, request: InferenceRequest, delta: Delta, created: int) -> bytes:
        self._texts.append(delta.text)
        return event({"text": delta.text}, "token")

    def last(self, request: InferenceRequest, end: End, now: float, created: int) -> bytes:
        return event(self._reply(request, "".join(self._texts), end, now), "answer") + DONE

    def _reply(self, request: InferenceRequest, text: str, end: End, now: float) -> ask.AskReply:
        found = request.found
        made = timing(request, now)
        passages = found.passages if found else []
        source = found.source if found else "skipped"
        whole = not made.degraded and source in ("db", "cache", "semantic")
        return ask.AskReply(
            text=text,
            source="tier1" if whole else "degraded",
            retrieval_source=source,
            top_k_used=len(passages),
            served_ms=made.total_ms,
            retrieval_ms=made.retrieval_ms,
            inference_served_ms=made.inference_ms,
            level=request.level,
            degraded=made.degraded,
            citations=[ask.Citation(p.doc_id, p.chunk_id, round(p.distance, 6)) for p in passages],
            usage=ask.Usage(end.prompt_tokens, end.completion_tokens, end.prompt_tokens + end.completion_tokens),
        )


def serializer_for(format: Format) -> Serializer:
    return _SERIALIZERS[format]()


_SERIALIZERS: dict[Format, type[ChatSerializer] | type[TextSerializer] | type[AskSerializer]] = {
    Format.CHAT: ChatSerializer,
    Format.COMPLETIONS: TextSerializer,
    Format.ASK: AskSerializer,
}


def passed_through(tail: Sequence[bytes], made: Timing) -> bytes:
    """The last events of a passed-through stream: the worker's own, with the router's timings added to the last one."""
    *before, last = (data.replace(b"\n", b"\ndata: ") for data in tail)
    if b'"weir"' in last:  # another Weir's timings, which are replaced
        value = msgspec.json.decode(tail[-1])
        value["weir"] = made
        last = _encode(value)
    else:
        last = last[:-1] + b',"weir":' + _encode(made) + b"}"
    return b"".join([*(b"data: " + data + b"\n\n" for data in (*before, last)), DONE])
