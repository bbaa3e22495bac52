"""How an answer is told: OpenAI's chat and text formats, and Weir's own `/ask`.

A worker that speaks the client's format is passed through; everything else is encoded here. A stream's last event
carries the field `weir` with the timings that a plain answer has in `Server-Timing`.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from services.router.asking.asked import Format
from services.router.observing.life import Life
from services.router.upstreams.call import Call, Delta, End, Whole

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode("ascii") + b"\n"
    return head + b"data: " + _encode(value) + b"\n\n"


def _usage(end: End) -> Usage:
    return Usage(end.prompt_tokens, end.completion_tokens, end.prompt_tokens + end.completion_tokens)


class Surface(Protocol):
    """One format. `created` is unix seconds."""

    def whole(self, call: Call, answer: Whole, life: Life, now: float, created: int) -> bytes:
        """The body of a plain answer."""

    def head(self, call: Call, created: int) -> bytes:
        """What a stream begins with; may be empty."""

    def delta(self, call: Call, delta: Delta, created: int) -> bytes:
        """What has newly arrived."""

    def last(self, call: Call, end: End, life: Life, now: float, created: int) -> bytes:
        """What a stream ends with, `[DONE]` included."""


class ChatSurface:
    """POST /v1/chat/completions."""

    def whole(self, call: Call, answer: Whole, life: Life, now: float, created: int) -> bytes:
        end = answer.end
        choice = ChatChoice(0, AnswerMessage("assistant", answer.text), end.finish_reason)
        return _encode(ChatCompletion(call.id, created, call.model, [choice], _usage(end)))

    def head(self, call: Call, created: int) -> bytes:
        return self._chunk(call, created, ChatDelta(role="assistant", content=""))

    def delta(self, call: Call, delta: Delta, created: int) -> bytes:
        return self._chunk(call, created, ChatDelta(content=delta.text))

    def _chunk(self, call: Call, created: int, delta: ChatDelta) -> bytes:
        return event(ChatChunk(call.id, created, call.model, [ChatChunkChoice(0, delta)]))

    def last(self, call: Call, end: End, life: Life, now: float, created: int) -> bytes:
        choice = ChatChunkChoice(0, ChatDelta(), end.finish_reason)
        finish = ChatChunk(call.id, created, call.model, [choice])
        counts = ChatChunk(call.id, created, call.model, [], usage=_usage(end))
        events = [finish, counts] if call.asked.include_usage else [finish]
        events[-1] = msgspec.structs.replace(events[-1], weir=life.timing(now))
        return b"".join([*map(event, events), DONE])


class TextSurface:
    """POST /v1/completions."""

    def whole(self, call: Call, answer: Whole, life: Life, now: float, created: int) -> bytes:
        choice = TextChoice(0, answer.text, answer.end.finish_reason)
        return _encode(TextCompletion(call.id, created, call.model, [choice], usage=_usage(answer.end)))

    def head(self, call: Call, created: int) -> bytes:
        return b""

    def delta(self, call: Call, delta: Delta, created: int) -> bytes:
        return event(TextCompletion(call.id, created, call.model, [TextChoice(0, delta.text)]))

    def last(self, call: Call, end: End, life: Life, now: float, created: int) -> bytes:
        finish = TextCompletion(call.id, created, call.model, [TextChoice(0, "", end.finish_reason)])
        counts = TextCompletion(call.id, created, call.model, [], usage=_usage(end))
        events = [finish, counts] if call.asked.include_usage else [finish]
        events[-1] = msgspec.structs.replace(events[-1], weir=life.timing(now))
        return b"".join([*map(event, events), DONE])


class AskSurface:
    """POST /ask. A stream is `token` events, then one `answer` event that holds the whole reply, then `[DONE]`."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def whole(self, call: Call, answer: Whole, life: Life, now: float, created: int) -> bytes:
        return _encode(self._reply(answer.text, answer.end, life, now))

    def head(self, call: Call, created: int) -> bytes:
        return b""

    def delta(self, call: Call, delta: Delta, created: int) -> bytes:
        self._said.append(delta.text)
        return event({"text": delta.text}, "token")

    def last(self, call: Call, end: End, life: Life, now: float, created: int) -> bytes:
        return event(self._reply("".join(self._said), end, life, now), "answer") + DONE

    def _reply(self, text: str, end: End, life: Life, now: float) -> ask.AskReply:
        found = life.found
        timing = life.timing(now)
        passages = found.passages if found else []
        source = found.source if found else "skipped"
        whole = not timing.degraded and source in ("db", "cache", "semantic")
        return ask.AskReply(
            text=text,
            source="tier1" if whole else "degraded",
            retrieval_source=source,
            top_k_used=len(passages),
            served_ms=timing.total_ms,
            retrieval_ms=timing.retrieval_ms,
            inference_served_ms=timing.inference_ms,
            level=life.level,
            degraded=timing.degraded,
            citations=[ask.Citation(p.doc_id, p.chunk_id, round(p.distance, 6)) for p in passages],
            usage=ask.Usage(end.prompt_tokens, end.completion_tokens, end.prompt_tokens + end.completion_tokens),
        )


def surface_for(format: Format) -> Surface:
    """A surface for one request."""
    return _SURFACES[format]()


_SURFACES: dict[Format, type[ChatSurface] | type[TextSurface] | type[AskSurface]] = {
    Format.CHAT: ChatSurface,
    Format.COMPLETIONS: TextSurface,
    Format.ASK: AskSurface,
}


def passed_through(tail: Iterable[bytes], timing: Timing) -> bytes:
    """The last events of a passed-through stream: the worker's own words, with our timings in the very last."""
    *before, last = tail
    value = msgspec.json.decode(last)
    value["weir"] = timing
    return b"".join([*(b"data: " + data + b"\n\n" for data in before), event(value), DONE])
