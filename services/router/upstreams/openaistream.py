"""The server-sent events of one answer, relayed as whole events.

Plain text events pass unread. Events without output (a role, a comment, Azure's filter results) are held back until the
first output, which decides about a retry and TTFT. The finishing event and all that follows are held back until
`[DONE]`, so that a cut stream is never taken for a complete one; without `[DONE]` a stream is complete if it finished
and its body ended as HTTP demands. Of several choices each must have finished, and the last finishing event is held
back. An error is raised, whatever its form.
"""

from __future__ import annotations

import re

from services.router.parsing.parsed import Format
from services.router.upstreams.call import Call, Delta, End
from services.router.upstreams.openaianswer import answer_of, end_of, is_output, text_of
from services.router.upstreams.openaiwire import UpstreamAnswer
from services.runtime.cut import Cut
from services.runtime.keepalive import Reply
from services.runtime.upstream import AnswerTooLarge, Truncated, UpstreamError

MAX_EVENT_BYTES = 1_048_576
MAX_KEPT_BYTES = 1_048_576
DONE = b"[DONE]"
OWN_NAMES = (b"", b"message", b"error")
FIELDS = (b"data:", b"event:", b":", b"id:", b"retry:")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PLAIN = re.compile(rb'(?:data: ?\{(?>[^\n]*?"choices")[^\n]*+(?<=\})\n\n)++')  # no backtracking: linear
MUST_BE_READ = re.compile(rb'"finish_reason"\s*:\s*"|\[DONE\]|"error"|"choices"\s*:\s*\[\s*\]|"index"\s*:\s*[^0\s]')


class OpenAIStream:
    """See `services.router.upstreams.call.Stream`."""

    def __init__(self, reply: Reply, call: Call) -> None:
        self.end: End | None = None
        self.tail: list[bytes] = []
        self._reply = reply
        self._cut = Cut(b"\n\n")
        self._return = b""  # a CR at the end of a piece
        self._raw = call.parsed.format is not Format.ASK
        self._wants_usage = call.parsed.include_usage
        self._began = False
        self._held: list[bytes] = []
        self._kept_bytes = 0
        self._finish_reason: str | None = None
        self._last: UpstreamAnswer | None = None
        special = call.parsed.special
        self._choices = 1 if special is None else special.choices
        self._started, self._finished = {0}, set[int]()  # indexes of choices; the first one begins in any case

    async def next(self) -> Delta | None:
        while self.end is None:
            piece = await self._reply.next_piece()
            if piece is None:
                return self._ended()
            delta = self._take(piece)
            if delta is not None:
                return delta
        return None

    def _ended(self) -> Delta | None:
        """The body has ended. An event without a final blank line counts too."""
        rest = self._cut.rest() + self._return
        delta = self._read(rest) if rest.strip() else None
        if self.end is None:
            self._done()
        return delta

    def _take(self, piece: bytes) -> Delta | None:
        if self._return or b"\r" in piece:
            piece = self._with_line_feeds(piece)
        block = self._cut.take(piece)
        if self._cut.waiting > MAX_EVENT_BYTES:
            raise AnswerTooLarge(f"an event exceeds {MAX_EVENT_BYTES} bytes")
        if not block:
            return None
        if self._began and self._raw and self._finish_reason is None and _may_pass(block):
            return Delta(raw=block)
        return self._read(block)

    def _with_line_feeds(self, piece: bytes) -> bytes:
        """The piece with CR LF replaced by LF, also across pieces."""
        piece, self._return = self._return + piece, b""
        if piece.endswith(b"\r"):
            piece, self._return = piece[:-1], b"\r"
        return piece.replace(b"\r\n", b"\n")

    def _read(self, block: bytes) -> Delta | None:
        texts: list[str] = []
        passed: list[bytes] = []
        for event in block.split(b"\n\n"):
            name, data = _fields(event)
            if not data or name not in OWN_NAMES:
                continue  # a comment, a ping, or the end of the block
            if data == DONE:
                self._done()
            elif self.end is not None:
                raise UpstreamError("the worker sent an event after [DONE]")
            else:
                self._read_event(data, texts, passed)
        if not self._began:
            return None
        if self._raw:
            passed, self._held = [*map(_event, self._held), *passed], []
            return Delta(raw=b"".join(passed)) if passed else None
        return Delta("".join(texts)) if texts else None

    def _read_event(self, data: bytes, texts: list[str], passed: list[bytes]) -> None:
        answer = answer_of(data, self._choices)
        if answer.usage is not None:
            self._last = answer
        for choice in answer.choices:
            if text := text_of(choice):
                texts.append(text)
            self._began = self._began or is_output(choice)
            self._note_end(choice.index or 0, choice.finish_reason, passed)
        if not self._raw:
            return  # encoded by the router's own serializer
        if not answer.choices and answer.usage is not None and not self._wants_usage:
            return  # requested by the router, not by the client
        if not self._started - self._finished:
            self._keep(self.tail, data)
        elif self._began:
            passed.append(_event(data))
        else:
            self._keep(self._held, data)

    def _note_end(self, index: int, finish_reason: str | None, passed: list[bytes]) -> None:
        """Note whether a choice has finished. If another one begins after it, what was held back is passed."""
        self._started.add(index)
        if finish_reason is not None:
            self._finished.add(index)
            self._finish_reason = finish_reason if self._finish_reason != "length" else "length"
        if self._choices > 1 and self.tail and self._began:
            passed += map(_event, self.tail)
            self.tail, self._kept_bytes = [], 0

    def _keep(self, kept: list[bytes], data: bytes) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise AnswerTooLarge(f"{MAX_KEPT_BYTES} bytes before the first output or after the last")
        kept.append(data)

    def _done(self) -> None:
        if self.end is not None:
            return
        if self._finish_reason is None or self._started - self._finished:
            raise Truncated("the worker's stream ended without a finish reason")
        self.end = end_of(self._finish_reason, self._last.usage if self._last is not None else None)
        if not self._began:  # an empty answer: the held events go out with its end
            self.tail[:0] = self._held
            self._held = []
        self._reply.linger()

    def close(self) -> None:
        self._reply.close()


def _event(data: bytes) -> bytes:
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def _may_pass(block: bytes) -> bool:
    """Whether these events are only text for the client, each in the usual form."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return PLAIN.fullmatch(block) is not None and not MUST_BE_READ.search(block)


def _fields(event: bytes) -> tuple[bytes, bytes]:
    """(name, data) of one event. Other fields are ignored. Raises UpstreamError for a line that is no field."""
    name, data = b"", []
    for line in event.removeprefix(BYTE_ORDER_MARK).split(b"\n"):
        if line.strip() and not line.startswith(FIELDS):
            raise UpstreamError("the worker's stream contains a line that is not an event field")
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return name, b"\n".join(data).strip()
