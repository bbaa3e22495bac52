"""What a client may believe of an answer, read from its bytes alone and by no code of the router's.

    right      whole, marked as whole, and the right text to the last byte
    refused    a status and a code that say why not
    cut        a stream that says by an error event that it is not whole, and whose text until then was right
    dropped    its connection ended before it, or a stream ended without a word: visibly not whole, but unexplained
    foreign    somebody else's nonce, anywhere in it
    wrong      anything else: a wrong text, one that is cut and told as whole, an answer without sense

The last two are what must never be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from loadtests.judging.nonces import NONCE, right


class Verdict(StrEnum):
    """See above."""

    RIGHT = "right"
    REFUSED = "refused"
    CUT = "cut"
    DROPPED = "dropped"
    FOREIGN = "foreign"
    WRONG = "wrong"


class Heard(NamedTuple):
    """An answer as it came. `ended`: the body ended as HTTP says that it ends."""

    status: int
    body: bytes
    stream: bool
    ended: bool = True


REFUSALS = frozenset(range(400, 600)) - {500}
"""500 is this router's word for a fault of its own: never an honest answer to what a worker does."""
DONE = "[DONE]"


FINISHED = ("stop",)
SHORTENED = ("stop", "length")


class Wanted(NamedTuple):
    """What is right. `shortened`: the answer says that it was granted fewer tokens, so a beginning is right too."""

    texts: Sequence[str]
    max_tokens: int
    shortened: bool = False

    def is_text(self, text: str) -> bool:
        """Whether a whole answer may have this text."""
        return text in self.texts or (self.shortened and bool(text) and self.begins(text))

    def begins(self, text: str) -> bool:
        """Whether a right answer begins so."""
        return any(right_text.startswith(text) for right_text in self.texts)

    def is_finish(self, reason: str | None) -> bool:
        """Whether a whole answer may end for this reason."""
        return reason in (SHORTENED if self.shortened else FINISHED)

    def is_usage(self, usage: dict[str, int]) -> bool:
        """Whether so many tokens may have been counted."""
        return 0 < usage["completion_tokens"] <= self.max_tokens and usage["prompt_tokens"] > 0


def judge(heard: Heard, nonce: str, max_tokens: int, texts: Sequence[str] = (), *, shortened: bool = False) -> Verdict:
    """Everything that has been heard of one answer, against the question.

    `texts`: the right ones, if not the usual one. `shortened`: see `Wanted`.
    """
    wanted = Wanted(texts or (right(nonce),), max_tokens, shortened)
    if any(found != nonce.encode() for found in NONCE.findall(heard.body)):
        return Verdict.FOREIGN
    if not heard.ended:
        return Verdict.DROPPED
    try:
        if heard.status != 200:
            return _refusal(heard)
        return _stream(heard, wanted) if heard.stream else _whole(heard, wanted)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Verdict.WRONG


def _refusal(heard: Heard) -> Verdict:
    code = json.loads(heard.body)["error"]["code"]
    honest = heard.status in REFUSALS and isinstance(code, str) and bool(code)
    return Verdict.REFUSED if honest else Verdict.WRONG


def _whole(heard: Heard, wanted: Wanted) -> Verdict:
    said = json.loads(heard.body)
    if "choices" in said:
        choice = said["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        finish = choice["finish_reason"]
    else:
        text, finish = said["text"], "stop"
    good = wanted.is_text(text) and wanted.is_finish(finish) and wanted.is_usage(said["usage"])
    return Verdict.RIGHT if good else Verdict.WRONG


class _Said:
    """What the events of a stream add up to."""

    def __init__(self) -> None:
        self.text = ""
        self.finish: str | None = None
        self.done = self.error = False
        self.after = False  # something came after the end
        self.usage: dict[str, Any] | None = None

    def take(self, name: str, data: str) -> None:
        self.after = self.after or self.done or self.error
        if data == DONE:
            self.done = True
            return
        said = json.loads(data)
        if name == "error" or "error" in said:
            self.error = True
        elif name == "answer":
            self.finish, self.usage = "stop", said["usage"]
            self.after = self.after or said["text"] != self.text
        elif name == "token":
            self.text += said["text"]
        else:
            self._chunk(said)

    def _chunk(self, said: dict[str, Any]) -> None:
        self.usage = said.get("usage") or self.usage
        for choice in said["choices"]:
            self.text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
            self.finish = choice["finish_reason"] or self.finish if "finish_reason" in choice else self.finish


def _stream(heard: Heard, wanted: Wanted) -> Verdict:
    said, rest = _Said(), ""
    for event in heard.body.decode("utf-8").split("\n\n"):
        rest = event
        name, data = _fields(event)
        if data:
            said.take(name, data)
    marked = said.done or said.finish is not None
    if said.after or rest:
        return Verdict.WRONG
    if said.error:
        honest = not marked and wanted.begins(said.text)
        return Verdict.CUT if honest else Verdict.WRONG
    if not marked:
        return Verdict.DROPPED
    whole = said.done and wanted.is_finish(said.finish) and wanted.is_text(said.text)
    good = whole and (said.usage is None or wanted.is_usage(said.usage))
    return Verdict.RIGHT if good else Verdict.WRONG


def _fields(event: str) -> tuple[str, str]:
    lines = [line for line in event.split("\n") if line and not line.startswith(":")]
    if any(not line.startswith(("data: ", "event: ")) for line in lines):
        raise ValueError(f"no line of an event: {event!r}")
    name = next((line[7:] for line in lines if line.startswith("event: ")), "")
    return name, "\n".join(line[6:] for line in lines if line.startswith("data: "))
