"""Which queued texts share the next pass of the model, and which cannot meet their deadline. Pure.

    now ......... free_at |-- pass --|---- pass ----|-- pass --|
                           a pass ends before any deadline in it

While all texts can meet their deadlines, the earliest deadline goes first; otherwise the newest text does, since the
oldest have the least time left. A late vector costs twice: its caller has gone, and the texts behind it are late. A
text that would be late even alone in the next pass is rejected at once.

The plan rests on measured durations. So an idle model always gets one text, the one with the most time left; otherwise
a model that seemed too slow would never be measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

GAIN = 0.125
MARGIN = 2.0  # deviations above the mean
BYTES_PER_TOKEN = 4
MAX_TEXT_TOKENS = 256  # of one text; a model reads no more
PASS_TOKENS = 8  # fixed cost of a pass, in tokens: a third of the cost of one short question
FIRST_DEVIATION = 0.25
MAX_CREDIBLE = 4.0  # times what was expected: one long stall must not reject texts for long
QUICK_SHARE = 0.5  # of the mean: a sample below this counts as fast
QUICK_ENOUGH = 2  # in a row reset the estimate


class QueuedText(Protocol):
    """One queued text: `due`, when its vector is needed (seconds, the loop's clock), and its estimated tokens."""

    @property
    def due(self) -> float: ...

    @property
    def tokens(self) -> int: ...


J = TypeVar("J", bound=QueuedText)


@dataclass(frozen=True, slots=True)
class BatchPlan(Generic[J]):
    """`next`: the texts of the next pass; `later`: those that stay queued; `late`: those that miss their deadline."""

    next: list[J]
    later: list[J]
    late: list[J]


class LatencyEstimate:
    """An upper estimate of the next sample: mean plus two deviations, both moving averages (Jacobson, as in TCP).

    One slow sample moves the mean only a little. Two samples in a row below half the mean reset the estimate, since the
    cause of the slowness is over: a moving average alone would need twenty samples after a threefold stall, and their
    deviation would raise the estimate at first.
    """

    __slots__ = ("_deviation", "_mean", "_quick")

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0
        self._quick = 0

    def record(self, sample: float) -> None:
        """Take a measurement, in seconds. A sample above MAX_CREDIBLE times the estimate counts as that much."""
        self._quick = self._quick + 1 if self._mean is not None and sample < self._mean * QUICK_SHARE else 0
        if self._mean is None or self._quick == QUICK_ENOUGH:
            self._mean, self._deviation, self._quick = sample, sample * FIRST_DEVIATION, 0
            return
        error = min(sample, self.value * MAX_CREDIBLE) - self._mean
        self._mean += GAIN * error
        self._deviation += GAIN * (abs(error) - self._deviation)

    @property
    def value(self) -> float:
        """Seconds; 0.0 before the first sample, so that an unmeasured model rejects nothing."""
        return 0.0 if self._mean is None else self._mean + MARGIN * self._deviation

    def __repr__(self) -> str:
        return f"<LatencyEstimate {self.value:.6f}>"


class PassDurationModel:
    """Predicts the duration of a pass from its tokens: seconds per token, learned from earlier passes."""

    __slots__ = ("_per_token_s",)

    def __init__(self) -> None:
        self._per_token_s = LatencyEstimate()

    def copy(self) -> PassDurationModel:
        duplicate = PassDurationModel()
        duplicate._per_token_s = copy(self._per_token_s)
        return duplicate

    def record(self, tokens: int, duration_s: float) -> None:
        self._per_token_s.record(duration_s / (PASS_TOKENS + tokens))

    def duration_s(self, tokens: int) -> float:
        """An upper estimate, in seconds, of a pass over `tokens` tokens."""
        return self._per_token_s.value * (PASS_TOKENS + tokens)


def plan_batch(
    jobs: Sequence[J], *, free_at: float, is_idle: bool, max_texts: int, duration_s: Callable[[int], float]
) -> BatchPlan[J]:
    """The next pass, of at most `max_texts` of these jobs, which are in order of arrival.

    `free_at`: when the model is free, in seconds of the loop's clock. `duration_s`: from tokens to seconds. `is_idle`:
    no pass runs, so one text is planned even if it will be late.
    """
    late = [job for job in jobs if free_at + duration_s(job.tokens) > job.due]
    hopeful = [job for job in jobs if free_at + duration_s(job.tokens) <= job.due]
    if is_idle and late and not hopeful:
        last = max(late, key=lambda job: job.due)
        return BatchPlan([last], [], [job for job in late if job is not last])
    by_deadline = sorted(hopeful, key=lambda job: job.due)
    order = by_deadline if _all_fit(by_deadline, free_at, max_texts, duration_s) else hopeful[::-1]
    joined = _first_pass(order, free_at, max_texts, duration_s)
    later = [job for job in hopeful if job not in joined]
    planned = len(joined) + len(later) + len(late)
    assert planned == len(jobs), f"{planned} of {len(jobs)} texts are planned: {len(joined)}, {len(later)}, {len(late)}"
    return BatchPlan(joined, later, late)


def _all_fit(by_deadline: Sequence[J], free_at: float, max_texts: int, duration_s: Callable[[int], float]) -> bool:
    left, start = list(by_deadline), free_at
    while left:
        joined = _first_pass(left, start, max_texts, duration_s)
        if not joined or joined[0] is not left[0]:
            return False
        left = [job for job in left if job not in joined]
        start += duration_s(sum(job.tokens for job in joined))
    return True


def _first_pass(order: Sequence[J], start: float, max_texts: int, duration_s: Callable[[int], float]) -> list[J]:
    """As many jobs as fit into a pass from `start` on, in this order: it must end before every deadline in it."""
    joined: list[J] = []
    tokens, due = 0, math.inf
    for job in order:
        if len(joined) < max_texts and start + duration_s(tokens + job.tokens) <= min(due, job.due):
            joined.append(job)
            tokens, due = tokens + job.tokens, min(due, job.due)
    return joined


def estimate_tokens(text: str) -> int:
    """A rough count of the tokens that the model reads of `text`: 4 bytes each, from 1 to MAX_TEXT_TOKENS."""
    length_bytes = (
        len(text.encode("utf-8", "surrogatepass")) if len(text) < MAX_TEXT_TOKENS * BYTES_PER_TOKEN else 1 << 30
    )
    return max(1, min(MAX_TEXT_TOKENS, -(-length_bytes // BYTES_PER_TOKEN)))
