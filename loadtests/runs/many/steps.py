"""Counts over time, from intervals: jobs at workers, open requests, and how many requests wait."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise
from math import inf

from loadtests.runs.many.record import Entry, Job

Change = tuple[float, int]


class Steps:
    """A count that changes at moments."""

    def __init__(self, changes: Iterable[Change]) -> None:
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

    def pieces(self, begin: float, end: float) -> Iterator[tuple[int, float]]:
        """The counts in an interval, each with its seconds."""
        moments = sorted({begin, *self.between(begin, end), end})
        yield from ((self.at(at_s), next_s - at_s) for at_s, next_s in pairwise(moments))

    def mean(self, begin: float, end: float) -> float:
        return sum(count * seconds for count, seconds in self.pieces(begin, end)) / (end - begin)


def jobs_at_once(jobs: Iterable[Job]) -> Steps:
    """Jobs at workers, from their arrival to their end."""
    return Steps(_changes(map(_held, jobs), 1))


def open_at_once(entries: Iterable[Entry]) -> Steps:
    """Requests that are open at their clients."""
    return Steps(_changes(map(_open, entries), 1))


def waiting_at_once(entries: Iterable[Entry], jobs: Iterable[Job]) -> Steps:
    """Requests that are open at their clients and at no worker."""
    return Steps(chain(_changes(map(_open, entries), 1), _changes(map(_held, jobs), -1)))


def _held(job: Job) -> tuple[float, float]:
    return job.queued_s, inf if job.ended_s is None else job.ended_s


def _open(entry: Entry) -> tuple[float, float]:
    return entry.sent_s, entry.ended_s


def _changes(intervals: Iterable[tuple[float, float]], change: int) -> Iterator[Change]:
    for begin, end in intervals:
        yield begin, change
        yield end, -change
