"""Slots by the workers' own logs: never more jobs than slots, and after a fault all of them in use while requests wait.

A slot is in use from the arrival of a request at its worker to its end. Requests wait while more than WAITING of them
are open at their clients and at no worker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import NamedTuple

from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.many.record import Observed, Phase, Span
from loadtests.runs.many.sizes import AGAIN_WITHIN_S, WAITING, WATCHED_S
from loadtests.runs.many.steps import jobs_at_once, open_at_once

IN_USE = 0.97
MIN_WAITED_S = 0.5
"""A fault is judged if requests waited for so long in the time that is looked at."""


class Use(NamedTuple):
    """`waited_s`: the seconds of an interval in which requests waited. `share`: of all slots, in use meanwhile."""

    waited_s: float
    share: float


@dataclass(frozen=True, slots=True)
class AfterFault:
    """`begin_s`, `end_s`: the time that is looked at."""

    span: Span
    begin_s: float
    end_s: float
    use: Use

    @property
    def is_judged(self) -> bool:
        return self.use.waited_s >= MIN_WAITED_S

    @property
    def is_missed(self) -> bool:
        return self.is_judged and self.use.share < IN_USE


class SlotUse:
    """Jobs at workers and open requests of a run, over time."""

    def __init__(self, observed: Observed) -> None:
        self._slots = observed.all_slots
        self._used = jobs_at_once(observed.jobs)
        self._open = open_at_once(observed.entries)

    def between(self, begin: float, end: float) -> Use:
        moments = sorted({begin, *self._used.between(begin, end), *self._open.between(begin, end), end})
        waited_s = used = 0.0
        for at_s, next_s in pairwise(moments):
            jobs = self._used.at(at_s)
            if self._open.at(at_s) - jobs > WAITING:
                waited_s += next_s - at_s
                used += min(jobs, self._slots) * (next_s - at_s)
        return Use(waited_s, used / (self._slots * waited_s) if waited_s else nan)


def after_faults(observed: Observed) -> list[AfterFault]:
    """The use of slots after each fault, until the next one."""
    use = SlotUse(observed)
    begins = sorted(span.from_s for span in observed.spans)
    found = []
    for span in observed.spans:
        begin = span.to_s + AGAIN_WITHIN_S
        place = bisect_right(begins, span.to_s)
        end = min([begin + WATCHED_S, *begins[place : place + 1]])
        found.append(AfterFault(span, begin, end, use.between(begin, end) if end > begin else Use(0.0, nan)))
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
    again = sum(not each.is_missed for each in judged)
    yield Figure("faults after which requests waited", len(judged), note=f"of {len(after)}")
    part = again / len(judged) if judged else nan
    yield at_least("of these, slots in use again", part, 1.0, "%", _within(again, judged))
    lowest, note = (nan, "") if worst is None else (worst.use.share, f"after {worst.span.fault}")
    yield at_least("slots in use after a fault, the lowest", lowest, IN_USE, "%", note)
    stalls_s = [observed.still(each.begin_s, each.end_s) for each in judged]
    yield Figure(
        "stall of the machine meanwhile, the longest", max(stalls_s, default=0.0), "s", note=f"of {WATCHED_S:g} s"
    )
    use = SlotUse(observed)
    calm = [use.between(stretch.from_s, stretch.to_s) for stretch in observed.phases(Phase.CALM)]
    waited_s = sum(each.waited_s for each in calm)
    share = sum(each.share * each.waited_s for each in calm if each.waited_s) / waited_s if waited_s else nan
    yield Figure("slots in use in calm, while requests wait", share, "%")


def _within(again: int, judged: Sequence[AfterFault]) -> str:
    return f"{again} of {len(judged)}: {IN_USE:.0%} within {AGAIN_WITHIN_S:g} s"
