"""What an answer was worth to a user: served, refused, lost or failed. `loadtests.load.answer` reads its bytes.

A refusal is a success of its own kind, if it keeps its promises: status 429 or 503, the error envelope, and, where it
invites a retry, a hint when. Anything else that is not a whole answer in time is a failure. One exception: where the
scenario itself broke a worker while the request was under way, an ending that says so in plain sight (504 or 502 with
its code, or an error event) is `lost`. A cut stream, a wrong body and a late answer are failures even then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from loadtests.load.answer import REFUSING, SERVED, Answer

LATE_AFTER_MS = 250  # what the way back may cost on top of the deadline
WHOLE_SOURCES = ("tier1", "degraded")
BROKEN = ("deadline_exceeded", "upstream_failed")  # what a request says that a broken worker could not finish


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

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


def failed(detail: str) -> Verdict:
    return Verdict(Kind.FAILED, detail)


def judge(answer: Answer, surface: str) -> Verdict:
    """A whole answer of a surface: `ask`, `chat` or `stream`."""
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
    """Anything that is not 200."""
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
