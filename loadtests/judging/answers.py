"""The verdict on an answer, from its bytes alone and without any code of the router.

    right      complete, marked as complete, and the right text to the last byte
    refused    a status and a code that give the reason
    cut        a stream that reports by an error event that it is incomplete; its text until then is right
    dropped    the connection or the stream ended early, visibly incomplete but without a reason
    foreign    it contains another request's nonce
    wrong      anything else: a wrong text, an incomplete one that is marked as complete, a malformed answer

The last two must never occur.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from loadtests.judging.nonces import NONCE, right


class Verdict(StrEnum):
    RIGHT = "right"
    REFUSED = "refused"
    CUT = "cut"
    DROPPED = "dropped"
    FOREIGN = "foreign"
    WRONG = "wrong"


class Received(NamedTuple):
    """An answer as received. `ended`: the body ended as HTTP requires."""

    status: int
    body: bytes
    stream: bool
    ended: bool = True


REFUSALS = frozenset(range(400, 600)) - {500}
"""500 reports a fault of the router itself, so it is never an acceptable answer to what a worker does."""
DONE = "[DONE]"


FINISHED = ("stop",)
SHORTENED = ("stop", "length")


class Wanted(NamedTuple):
    """What is right. `shortened`: the answer reports that fewer tokens were granted, so a prefix is right too."""

    texts: Sequence[str]
    max_tokens: int
    shortened: bool = False

    def is_text(self, text: str) -> bool:
        return text in self.texts or (self.shortened and bool(text) and self.begins(text))

    def begins(self, text: str) -> bool:
        return any(right_text.startswith(text) for right_text in self.texts)

    def is_finish(self, reason: str | None) -> bool:
        return reason in (SHORTENED if self.shortened else FINISHED)

    def is_usage(self, usage: dict[str, int]) -> bool:
        return 0 < usage["completion_tokens"] <= self.max_tokens and usage["prompt_tokens"] > 0


def judge(
    answer: Received, nonce: str, max_tokens: int, texts: Sequence[str] = (), *, shortened: bool = False
) -> Verdict:
    """The verdict on one answer.

    `texts`: the right ones, if not the usual one. `shortened`: see `Wanted`.
    """
    wanted = Wanted(texts or (right(nonce),), max_tokens, shortened)
    if any(found != nonce.encode() for found in NONCE.findall(answer.body)):
        return Verdict.FOREIGN
    if not answer.ended:
        return Verdict.DROPPED
    try:
        if answer.status != 200:
            return _refusal(answer)
        return _stream(answer, wanted) if answer.stream else _whole(answer, wanted)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Verdict.WRONG


def _refusal(answer: Received) -> Verdict:
    code = json.loads(answer.body)["error"]["code"]
    honest = answer.status in REFUSALS and isinstance(code, str) and bool(code)
    return Verdict.REFUSED if honest else Verdict.WRONG


def _whole(answer: Received, wanted: Wanted) -> Verdict:
    body = json.loads(answer.body)
    if "choices" in body:
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        finish = choice["finish_reason"]
    else:
        text, finish = body["text"], "stop"
    good = wanted.is_text(text) and wanted.is_finish(finish) and wanted.is_usage(body["usage"])
    return Verdict.RIGHT if good else Verdict.WRONG


class _Content:
    def __init__(self) -> None:
        self.text = ""
        self.finish: str | None = None
        self.done = self.error = False
        self.after = False  # an event followed the end
        self.usage: dict[str, Any] | None = None

    def take(self, name: str, data: str) -> None:
        self.after = self.after or self.done or self.error
        if data == DONE:
            self.done = True
            return
        event = json.loads(data)
        if name == "error" or "error" in event:
            self.error = True
        elif name == "answer":
            self.finish, self.usage = "stop", event["usage"]
            self.after = self.after or event["text"] != self.text
        elif name == "token":
            self.text += event["text"]
        else:
            self._chunk(event)

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
            self.finish = choice["finish_reason"] or self.finish if "finish_reason" in choice else self.finish


def _stream(answer: Received, wanted: Wanted) -> Verdict:
    content, rest = _Content(), ""
    for event in answer.body.decode("utf-8").split("\n\n"):
        rest = event
        name, data = _fields(event)
        if data:
            content.take(name, data)
    marked = content.done or content.finish is not None
    if content.after or rest:
        return Verdict.WRONG
    if content.error:
        honest = not marked and wanted.begins(content.text)
        return Verdict.CUT if honest else Verdict.WRONG
    if not marked:
        return Verdict.DROPPED
    whole = content.done and wanted.is_finish(content.finish) and wanted.is_text(content.text)
    good = whole and (content.usage is None or wanted.is_usage(content.usage))
    return Verdict.RIGHT if good else Verdict.WRONG


def _fields(event: str) -> tuple[str, str]:
    lines = [line for line in event.split("\n") if line and not line.startswith(":")]
    if any(not line.startswith(("data: ", "event: ")) for line in lines):
        raise ValueError(f"not a line of an event: {event!r}")
    name = next((line[7:] for line in lines if line.startswith("event: ")), "")
    return name, "\n".join(line[6:] for line in lines if line.startswith("data: "))
