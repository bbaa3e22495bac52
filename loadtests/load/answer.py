"""An incremental reader of one answer, without sockets or clocks.

A whole answer is parsed at its end. A stream is parsed as it grows, because the first token's time matters to users.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadtests.load.ledger import CODES

SERVED = "served"
REFUSING = (429, 503)
MAX_BODY_BYTES = 4_194_304


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | None = None


class _Fields(msgspec.Struct):
    """The fields read from any route's answer or event; all others are ignored."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    text: str | None = None
    source: str = ""
    error: _Error | None = None
    retrieval_source: str = ""


_read = msgspec.json.Decoder(_Fields).decode


class Answer:
    """One answer. `body` returns True for the piece that brought the first token. `source` is `/ask`'s own field."""

    __slots__ = (
        "_buffer",
        "_bytes",
        "_done",
        "_error",
        "_malformed",
        "degraded",
        "hint_ms",
        "level",
        "retrieval_source",
        "should_retry",
        "source",
        "spoken",
        "status",
        "streamed",
        "tokens",
    )
    max_bytes = MAX_BODY_BYTES

    def __init__(self) -> None:
        self.status = 0
        self.hint_ms: float | None = None
        self.should_retry = False
        self.level = 0
        self.degraded = ""
        self.source = ""
        self.retrieval_source = ""
        self.streamed = False
        self.spoken = False
        self.tokens = 0
        self._buffer: list[bytes] = []
        self._bytes = 0
        self._done = False
        self._error: str | None = None
        self._malformed = False

    def header(self, name: bytes, value: bytes) -> None:
        take = _HEADERS.get(name)
        if take is not None:
            try:
                take(self, value)
            except ValueError:
                self._malformed = True

    def body(self, data: bytes) -> bool:
        self._bytes += len(data)
        if self._bytes > self.max_bytes:
            self._malformed = True
            return False
        self._buffer.append(data)
        return self._events() if self.streamed and self.status == 200 else False

    def outcome(self) -> tuple[str, str]:
        """Outcome and code of an ended answer. The outcome is `served`, `refused:CODE` or `failed:WHAT`."""
        if self._malformed:
            return "failed:malformed", ""
        if self.status == 200:
            return self._stream_outcome() if self.streamed else self._whole_outcome()
        return self._error_outcome()

    def _whole_outcome(self) -> tuple[str, str]:
        fields = self._decode(b"".join(self._buffer))
        if fields is None or not _text(fields):
            return "failed:malformed", ""
        self._count(fields)
        self.source = fields.source
        self.retrieval_source = fields.retrieval_source
        return SERVED, ""

    def _stream_outcome(self) -> tuple[str, str]:
        if self._error is not None:
            return "failed:stream_error", self._error
        if self._done and not self.spoken:
            return "failed:malformed", ""
        return (SERVED, "") if self._done else ("failed:cut", "")

    def _error_outcome(self) -> tuple[str, str]:
        fields = self._decode(b"".join(self._buffer))
        code = fields.error.code if fields is not None and fields.error is not None else None
        if code is None and self.status in REFUSING:
            code = f"bare_{self.status}"
        if code is None or code not in CODES:
            return "failed:bad_status", code or str(self.status)
        return f"refused:{code}", code

    def _events(self) -> bool:
        """Consume the complete events in the buffer."""
        *events, rest = b"".join(self._buffer).split(b"\n\n")
        self._buffer = [rest] if rest else []
        was_spoken = self.spoken
        for event in events:
            self._event(event)
        return self.spoken and not was_spoken

    def _event(self, event: bytes) -> None:
        at = event.find(b"data: ")
        if at < 0:
            return  # a keep-alive comment
        data = event[at + 6 :]
        if data == b"[DONE]":
            self._done = True
            return
        fields = self._decode(data)
        if fields is None:
            self._malformed = True
        elif fields.error is not None or event.startswith(b"event: error"):
            self._error = (fields.error and fields.error.code) or "unknown"
        elif _text(fields):
            self.spoken = True
            self._count(fields, events=1)
        else:
            self._count(fields)

    def _count(self, fields: _Fields, events: int = 0) -> None:
        """Tokens from `usage` if present, else one per event with text."""
        self.tokens = fields.usage.completion_tokens if fields.usage is not None else self.tokens + events

    @staticmethod
    def _decode(data: bytes) -> _Fields | None:
        try:
            return _read(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def __repr__(self) -> str:
        return f"<Answer {self.status or 'not begun'}, {self._bytes} bytes, {self.tokens} tokens>"


def _text(fields: _Fields) -> bool:
    """Whether there is text: in a completion, a chat message or delta, or the `text` of `/ask` or a worker."""
    return bool(fields.text) or any(map(_choice_text, fields.choices))


def _choice_text(choice: _Choice) -> str | None:
    fields = choice.message or choice.delta
    return choice.text if fields is None else fields.content


def _retry_after_ms(answer: Answer, value: bytes) -> None:
    answer.hint_ms = float(value)


def _retry_after(answer: Answer, value: bytes) -> None:
    if answer.hint_ms is None:
        answer.hint_ms = float(value) * 1000


def _should_retry(answer: Answer, value: bytes) -> None:
    answer.should_retry = value == b"true"


def _level(answer: Answer, value: bytes) -> None:
    answer.level = int(value)


def _degraded(answer: Answer, value: bytes) -> None:
    answer.degraded = value.decode("latin-1")


def _content_type(answer: Answer, value: bytes) -> None:
    answer.streamed = value.startswith(b"text/event-stream")


_HEADERS: dict[bytes, Callable[[Answer, bytes], None]] = {
    b"retry-after-ms": _retry_after_ms,
    b"retry-after": _retry_after,
    b"x-should-retry": _should_retry,
    b"x-weir-level": _level,
    b"x-weir-degraded": _degraded,
    b"content-type": _content_type,
}
