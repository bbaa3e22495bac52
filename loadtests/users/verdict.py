"""The verdict on an answer: served, refused, lost or failed. `loadtests.load.answer` reads the bytes.

A refusal is valid with status 429 or 503, the error envelope and, if it invites a retry, a hint. Anything else that is
not a whole answer in time is a failure. One exception: if the scenario had broken a worker while the request was under
way, an explicit error (504 or 502 with its code, or an error event) is `lost`. A cut stream, a wrong body and a late
answer are failures even then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from loadtests.load.answer import REFUSING, SERVED, Answer

LATE_AFTER_MS = 250  # allowance for the way back after the deadline
WHOLE_SOURCES = ("tier1", "degraded")
BROKEN = ("deadline_exceeded", "upstream_failed")  # codes of requests that a broken worker did not finish


class Kind(Enum):
    SERVED = "served"
    REFUSED = "refused"
    LEFT = "left"
    LOST = "lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`detail` is one or two words of a closed set: a row of the summary."""

    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


def failed(detail: str) -> Verdict:
    return Verdict(Kind.FAILED, detail)


def judge(answer: Answer, surface: str) -> Verdict:
    """The verdict on a whole answer of a surface: `ask`, `chat` or `stream`."""
    outcome, code = answer.outcome()
    if answer.status != 200:
        return _refusal(answer, outcome, code)
    if outcome == SERVED:
        if not (answer.source in WHOLE_SOURCES if surface == "ask" else answer.tokens > 0):
            return failed("200 without an answer")
        cut = answer.degraded or answer.source == "degraded"
        return Verdict(Kind.SERVED, "degraded" if cut else "")
    if outcome == "failed:stream_error":
        return failed(f"stream broken: {code}")
    return failed("stream cut short" if outcome == "failed:cut" else "200 without an answer")


def _refusal(answer: Answer, outcome: str, code: str) -> Verdict:
    if outcome == "failed:malformed":
        return failed(f"{answer.status} malformed")
    if code in ("", str(answer.status)) or code.startswith("bare_"):
        return failed(f"{answer.status} without the error envelope")
    if answer.status not in REFUSING:
        return failed(f"{answer.status} {code}")
    if answer.should_retry and (answer.hint_ms is None or answer.hint_ms < 0):
        return failed(f"{answer.status} {code} without a hint")
    return Verdict(Kind.REFUSED, code)


def in_time(verdict: Verdict, took_ms: float, deadline_ms: float) -> Verdict:
    """The same verdict, or failed if a whole answer came after its deadline."""
    late = verdict.kind is Kind.SERVED and took_ms > deadline_ms + LATE_AFTER_MS
    return failed("late") if late else verdict


def excused(verdict: Verdict) -> Verdict:
    """The same verdict, or `lost` for an explicit error while the scenario had broken a worker."""
    honest = verdict.kind is Kind.FAILED and verdict.detail.rpartition(" ")[2] in BROKEN
    return Verdict(Kind.LOST, verdict.detail) if honest else verdict


def no_answer(timed_out: bool, patient: bool) -> Verdict:
    """The verdict if the user disconnected or the connection failed."""
    if not timed_out:
        return failed("connection lost")
    return failed("hung past its deadline") if patient else Verdict(Kind.LEFT, "out of patience")
