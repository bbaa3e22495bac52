"""What an answer was worth: served, refused, lost or failed. The client's own judgement, from bytes alone.

A refusal is a success of its own kind, if it keeps its promises: status 429 or 503, the error envelope, and, where it
invites a retry, a hint when. Anything else that is not a whole answer in time is a failure. One exception: where the
scenario itself broke a worker while the request was under way, an ending that says so in plain sight (504 or 502 with
its code, or an error event) is `lost`. A cut stream, a wrong body and a late answer are failures even then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

REFUSALS = (429, 503)
LATE_AFTER_MS = 250  # what the way back may cost on top of the deadline
WHOLE_SOURCES = ("tier1", "degraded")

BROKEN = ("deadline_exceeded", "upstream_failed")  # what a request says that a broken worker could not finish

Headers = Mapping[str, str]


class Kind(Enum):
    """What a user would say of it."""

    SERVED = "served"
    REFUSED = "refused"
    LEFT = "left"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` is a short, closed-set word or two: it becomes a row of the summary."""

    kind: Kind
    detail: str = ""
    retry: bool = False
    hint_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


def failed(detail: str) -> Verdict:
    return Verdict(Kind.FAILED, detail)


def judge_ask(status: int, headers: Headers, body: bytes) -> Verdict:
    """POST /ask."""
    if status != 200:
        return judge_refusal(status, headers, body)
    answer = _object(body)
    if answer is None or not answer.get("text") or answer.get("source") not in WHOLE_SOURCES:
        return failed("200 without an answer")
    return Verdict(Kind.SERVED, "" if answer["source"] == "tier1" else "degraded")


def judge_chat(status: int, headers: Headers, body: bytes) -> Verdict:
    """POST /v1/chat/completions, whole."""
    if status != 200:
        return judge_refusal(status, headers, body)
    answer = _object(body) or {}
    try:
        content = answer["choices"][0]["message"]["content"]
        counted = answer["usage"]["completion_tokens"] > 0
    except (KeyError, IndexError, TypeError):
        return failed("200 without an answer")
    return _served(headers) if content and counted else failed("200 without an answer")


def judge_refusal(status: int, headers: Headers, body: bytes) -> Verdict:
    """Anything that is not 200."""
    if status == 0:
        return failed("no connection")
    error = (_object(body) or {}).get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if not code:
        return failed(f"{status} without the error envelope")
    if status not in REFUSALS:
        return failed(f"{status} {code}")
    retry = headers.get("x-should-retry") == "true"
    hint_s = _hint_s(headers)
    if retry and hint_s is None:
        return failed(f"{status} {code} without a hint")
    return Verdict(Kind.REFUSED, str(code), retry, hint_s or 0.0)


def in_time(verdict: Verdict, took_ms: float, deadline_ms: float) -> Verdict:
    """The same verdict, unless a whole answer came after its deadline."""
    late = verdict.kind is Kind.SERVED and took_ms > deadline_ms + LATE_AFTER_MS
    return failed("late") if late else verdict


def excused(verdict: Verdict) -> Verdict:
    """The same verdict, of a request that was under way while the scenario itself had broken a worker."""
    honest = verdict.kind is Kind.FAILED and verdict.detail.rpartition(" ")[2] in BROKEN
    return Verdict(Kind.LOST, verdict.detail) if honest else verdict


def no_answer(timed_out: bool, patient: bool) -> Verdict:
    """Nothing, or nothing whole, came: the user has hung up, or the connection failed."""
    if not timed_out:
        return failed("connection lost")
    return failed("hung past its deadline") if patient else Verdict(Kind.LEFT, "out of patience")


class StreamVerdict:
    """POST /v1/chat/completions, streamed: fed line by line."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._event = ""
        self._error = ""
        self._done = False
        self.spoken = False

    def feed(self, line: bytes) -> bool:
        """Take one line; whether it brought the first words."""
        field, _, value = line.strip().partition(b": ")
        if field == b"event":
            self._event = value.decode("utf-8", "replace")
        elif not field:
            self._event = ""
        elif field == b"data":
            return self._take(value)
        return False

    def _take(self, data: bytes) -> bool:
        if data == b"[DONE]":
            self._done = True
            return False
        chunk = _object(data) or {}
        if self._event == "error" or "error" in chunk:
            error = chunk.get("error")
            self._error = str(error.get("code")) if isinstance(error, dict) else "unknown"
            return False
        first = not self.spoken and _says_something(chunk)
        self.spoken = self.spoken or first
        return first

    def verdict(self) -> Verdict:
        """What it was, now that the stream has ended."""
        if self._error:
            return failed(f"stream broken: {self._error}")
        if not self._done:
            return failed("stream cut short")
        return _served(self._headers) if self.spoken else failed("200 without an answer")


def _says_something(chunk: dict[str, Any]) -> bool:
    try:
        return bool(chunk["choices"][0]["delta"].get("content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        return False


def _served(headers: Headers) -> Verdict:
    return Verdict(Kind.SERVED, "degraded" if headers.get("x-weir-degraded") else "")


def _hint_s(headers: Headers) -> float | None:
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is not None:
            return float(value) * unit_s if value.replace(".", "", 1).isdecimal() else None
    return None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
