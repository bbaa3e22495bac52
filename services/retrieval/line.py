"""The embedder's line, planned ahead: who shares the next pass, and who cannot be served in time. Pure.

    now ......... free_at |-- pass --|---- pass ----|-- pass --|
                           a pass ends before any deadline in it

While there is time for all, the tightest deadline goes first. When there is not, the newest goes first: the oldest
have the least time left, each of them would be finished in the nick of time or just too late, and what is finished too
late is lost twice: it comes to nobody, and it has made the next ones late as well. Whoever could not even make it in
the next pass, alone, is told at once.

A plan is only as good as its pace, and a pace that nobody tries is never mended: a model that has been idle is always
given someone, if only the one with the most time left.
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
MOST_TOKENS = 256  # of one text; a model reads no more
PASS_TOKENS = 24  # what a pass costs beside its texts, in tokens: half of what one short question costs
FIRST_DEVIATION = 0.25
MOST_CREDIBLE = 4.0  # times what was expected: one long stall must not close the door for long
QUICK_SHARE = 0.5  # of the mean: a sample below this is of another time
QUICK_ENOUGH = 2  # in a row, and the mean is of the past


class Due(Protocol):
    """One text in line: when its vector must be there, on the loop's clock, and roughly how long it is."""

    @property
    def due(self) -> float: ...

    @property
    def tokens(self) -> int: ...


J = TypeVar("J", bound=Due)


@dataclass(frozen=True, slots=True)
class Plan(Generic[J]):
    """The texts of the next pass, those that wait on, and those for whom there is no time."""

    next: list[J]
    later: list[J]
    late: list[J]


class Estimate:
    """A cautious guess of the next sample: the mean and two deviations, both moving averages (as TCP times answers).

    Anything can slow a pass and nothing can hasten it. So a slow sample is a hint, and moves the mean a little; two in
    a row in less than half the mean are proof that what was slow is over, and the guess begins anew. (A moving average
    needs twenty of them after a threefold stall: at first they even raise the guess, by their deviation.)
    """

    __slots__ = ("_deviation", "_mean", "_quick")

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0
        self._quick = 0

    def learn(self, sample: float) -> None:
        self._quick = self._quick + 1 if self._mean is not None and sample < self._mean * QUICK_SHARE else 0
        if self._mean is None or self._quick == QUICK_ENOUGH:
            self._mean, self._deviation, self._quick = sample, sample * FIRST_DEVIATION, 0
            return
        error = min(sample, self.value * MOST_CREDIBLE) - self._mean
        self._mean += GAIN * error
        self._deviation += GAIN * (abs(error) - self._deviation)

    @property
    def value(self) -> float:
        """0.0 before the first sample: what is not known keeps nobody out."""
        return 0.0 if self._mean is None else self._mean + MARGIN * self._deviation

    def __repr__(self) -> str:
        return f"<Estimate {self.value:.6f}>"


class Pace:
    """How long a pass over so many tokens lasts, by how long passes have lasted."""

    __slots__ = ("_per_token_s",)

    def __init__(self) -> None:
        self._per_token_s = Estimate()

    def copy(self) -> Pace:
        """Another that has seen the same."""
        other = Pace()
        other._per_token_s = copy(self._per_token_s)
        return other

    def passed(self, tokens: int, duration_s: float) -> None:
        """A pass over this many tokens has lasted this long."""
        self._per_token_s.learn(duration_s / (PASS_TOKENS + tokens))

    def duration_s(self, tokens: int) -> float:
        """What a pass over this many tokens will last, cautiously."""
        return self._per_token_s.value * (PASS_TOKENS + tokens)


def plan(jobs: Sequence[J], *, free_at: float, is_idle: bool, most: int, duration_s: Callable[[int], float]) -> Plan[J]:
    """The next pass, of at most `most` of these jobs, which are in the order of their arrival.

    `is_idle`: the model has had nothing to do, and so is given someone.
    """
    late = [job for job in jobs if free_at + duration_s(job.tokens) > job.due]
    hopeful = [job for job in jobs if free_at + duration_s(job.tokens) <= job.due]
    if is_idle and late and not hopeful:
        last = max(late, key=lambda job: job.due)
        return Plan([last], [], [job for job in late if job is not last])
    by_deadline = sorted(hopeful, key=lambda job: job.due)
    order = by_deadline if _all_fit(by_deadline, free_at, most, duration_s) else hopeful[::-1]
    joined = _first_pass(order, free_at, most, duration_s)
    later = [job for job in hopeful if job not in joined]
    planned = len(joined) + len(later) + len(late)
    assert planned == len(jobs), f"{planned} of {len(jobs)} texts are planned: {len(joined)}, {len(later)}, {len(late)}"
    return Plan(joined, later, late)


def _all_fit(by_deadline: Sequence[J], free_at: float, most: int, duration_s: Callable[[int], float]) -> bool:
    left, start = list(by_deadline), free_at
    while left:
        joined = _first_pass(left, start, most, duration_s)
        if not joined or joined[0] is not left[0]:
            return False
        left = [job for job in left if job not in joined]
        start += duration_s(sum(job.tokens for job in joined))
    return True


def _first_pass(order: Sequence[J], start: float, most: int, duration_s: Callable[[int], float]) -> list[J]:
    """As many as fit into a pass from `start` on, taken in this order: it must end before any deadline in it."""
    joined: list[J] = []
    tokens, due = 0, math.inf
    for job in order:
        if len(joined) < most and start + duration_s(tokens + job.tokens) <= min(due, job.due):
            joined.append(job)
            tokens, due = tokens + job.tokens, min(due, job.due)
    return joined


def tokens_of(text: str) -> int:
    """Roughly how many tokens the model will read, by a rule of thumb: at least 1, and no more than it can read."""
    length_bytes = len(text.encode("utf-8", "surrogatepass")) if len(text) < MOST_TOKENS * BYTES_PER_TOKEN else 1 << 30
    return max(1, min(MOST_TOKENS, -(-length_bytes // BYTES_PER_TOKEN)))
