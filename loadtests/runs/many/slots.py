"""Slots by the workers' own logs: never more jobs than slots, and after a fault all of them in use while requests wait.

A slot is in use from the arrival of a request at its worker to its end. Requests wait while more than WAITING of them
are open at their clients and at no worker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, nan
from typing import NamedTuple

from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.many.record import Observed, Phase, Span
from loadtests.runs.many.sizes import AGAIN_WITHIN_S, WAITING, WATCHED_S

IN_USE = 0.97
MIN_WAITED_S = 0.5
"""A fault is judged if requests waited for so long in the time that is looked at."""


class Steps:
    """A count that changes at moments."""

    def __init__(self, changes: Iterable[tuple[float, int]]) -> None:
        by_time = Counter[float]()
        for at_s, change in changes:
            by_time[at_s] += change
        self.times = sorted(by_time)
        self._values = list(accumulate(by_time[at_s] for at_s in self.times))

    def at(self, now: float) -> int:
        place = bisect_right(self.times, now)
        return self._values[place - 1] if place else 0

    def between(self, begin: float, end: float) -> list[float]:
        """The moments of change inside an interval."""
        return self.times[bisect_right(self.times, begin) : bisect_right(self.times, end)]


class Use(NamedTuple):
    """`waited_s`: the seconds of an interval in which requests waited. `share`: of all slots, in use meanwhile."""

    waited_s: float
    share: float


@dataclass(frozen=True, slots=True)
class AfterFault:
    span: Span
    use: Use

    @property
    def is_judged(self) -> bool:
        return self.use.waited_s >= MIN_WAITED_S


class SlotUse:
    """Jobs at workers and open requests of a run, over time."""

    def __init__(self, observed: Observed) -> None:
        jobs, entries = observed.jobs, observed.entries
        self._slots = observed.all_slots
        self._used = Steps(_changes((job.queued_s, inf if job.ended_s is None else job.ended_s) for job in jobs))
        self._open = Steps(_changes((entry.sent_s, entry.ended_s) for entry in entries))

    def between(self, begin: float, end: float) -> Use:
        moments = sorted({begin, *self._used.between(begin, end), *self._open.between(begin, end), end})
        waited_s = used = 0.0
        for at_s, next_s in pairwise(moments):
            jobs = self._used.at(at_s)
            if self._open.at(at_s) - jobs > WAITING:
                waited_s += next_s - at_s
                used += min(jobs, self._slots) * (next_s - at_s)
        return Use(waited_s, used / (self._slots * waited_s) if waited_s else nan)


def _changes(intervals: Iterable[tuple[float, float]]) -> Iterator[tuple[float, int]]:
    for begin, end in intervals:
        yield begin, 1
        yield end, -1


def after_faults(observed: Observed) -> list[AfterFault]:
    """The use of slots after each fault, until the next one."""
    use = SlotUse(observed)
    begins = sorted(span.from_s for span in observed.spans)
    found = []
    for span in observed.spans:
        begin = span.to_s + AGAIN_WITHIN_S
        place = bisect_right(begins, span.to_s)
        end = min([begin + WATCHED_S, *begins[place : place + 1]])
        found.append(AfterFault(span, use.between(begin, end) if end > begin else Use(0.0, nan)))
    return found


def figures(observed: Observed, after: Sequence[AfterFault]) -> Iterator[Figure]:
    slots = observed.slots
    running = max((worker.max_running for worker in observed.workers), default=0)
    held = max((worker.max_held for worker in observed.workers), default=0)
    yield at_least("jobs in the workers' logs", len(observed.jobs), 1)
    yield at_most("most jobs in the slots of a worker at once", running, slots)
    yield at_most("most jobs at a worker at once, with those that wait for a slot", held, slots)
    refused = sum(worker.refused for worker in observed.workers)
    yield Figure("requests that a worker refused: it had no slot for them", refused)
    judged = [each for each in after if each.is_judged]
    worst = min(judged, key=lambda each: each.use.share, default=None)
    again = sum(each.use.share >= IN_USE for each in judged)
    yield Figure("faults after which requests waited", len(judged), note=f"of {len(after)}")
    part = again / len(judged) if judged else nan
    yield at_least("of these, slots in use again", part, 1.0, "%", _within(again, judged))
    lowest, note = (nan, "") if worst is None else (worst.use.share, f"after {worst.span.fault}")
    yield at_least("slots in use after a fault, the lowest", lowest, IN_USE, "%", note)
    use = SlotUse(observed)
    calm = [use.between(stretch.from_s, stretch.to_s) for stretch in observed.phases(Phase.CALM)]
    waited_s = sum(each.waited_s for each in calm)
    share = sum(each.share * each.waited_s for each in calm if each.waited_s) / waited_s if waited_s else nan
    yield Figure("slots in use in calm, while requests wait", share, "%")


def _within(again: int, judged: Sequence[AfterFault]) -> str:
    return f"{again} of {len(judged)}: {IN_USE:.0%} within {AGAIN_WITHIN_S:g} s"
