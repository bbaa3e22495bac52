"""How requests ended: counts and rounded times, in bounded memory. One line per request would be honest but endless.

Every request is counted once, under the stage in which it began. Times are kept to two significant digits, so that a
million requests need no more room than a thousand.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

ANSWERED = "served"
MOST_OUTCOMES = 64  # what a server may say is not for us to bound: beyond these, `other`


class Row(NamedTuple):
    """Whose requests, and how they ended. `kind` is the first word of an outcome: served, refused, ..."""

    stage: str
    group: str
    surface: str
    kind: str
    detail: str

    @property
    def outcome(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Times:
    """How long some requests took."""

    def __init__(self, times_ms: Iterable[Counter[int]] = ()) -> None:
        self._counts: Counter[int] = Counter()
        for counts in times_ms:
            self._counts.update(counts)

    @property
    def count(self) -> int:
        return self._counts.total()

    def percentile_ms(self, q: float) -> int | None:
        """The least time that a share `q` of the requests did not exceed; none of no requests."""
        return percentile(self._counts, q) if self._counts else None


class Ledger:
    """The books of one run."""

    def __init__(self) -> None:
        self._times_ms: defaultdict[Row, Counter[int]] = defaultdict(Counter)
        self._first_ms: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._by_second: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._unanswered_s: dict[int, float] = {}
        self._outcomes: set[str] = set()

    def record(self, row: Row, began_s: float, took_ms: float) -> None:
        """A request that began so long after the start of the run ended so."""
        if row.outcome not in self._outcomes and len(self._outcomes) >= MOST_OUTCOMES:
            row = row._replace(detail="other")
        self._outcomes.add(row.outcome)
        self._times_ms[row][_two_digits(took_ms)] += 1
        second = int(began_s)
        self._by_second[second][row.kind] += 1
        if row.kind != ANSWERED:
            self._unanswered_s[second] = max(began_s, self._unanswered_s.get(second, 0.0))

    def heard(self, stage: str, group: str, took_ms: float) -> None:
        """The first words of a stream came."""
        self._first_ms[stage, group][_two_digits(took_ms)] += 1

    @property
    def total(self) -> int:
        return sum(times.total() for times in self._times_ms.values())

    def count(self, kind: str) -> int:
        """Requests that ended so, in all."""
        return sum(times.total() for row, times in self._times_ms.items() if row.kind == kind)

    def rows(self) -> list[tuple[Row, Times]]:
        """Every outcome that there was, in order."""
        return [(row, Times([times])) for row, times in sorted(self._times_ms.items())]

    def times(self, which: Callable[[Row], bool]) -> Times:
        """Of the requests in these rows."""
        return Times(times for row, times in self._times_ms.items() if which(row))

    def first_words(self, stage: str, group: str) -> Times:
        """How long the first words of streams took."""
        return Times([self._first_ms[stage, group]] if (stage, group) in self._first_ms else [])

    def unanswered_s(self) -> list[float]:
        """When the last request of each second began that was not answered, where there was one."""
        return sorted(self._unanswered_s.values())

    def seconds(self) -> list[tuple[int, Counter[str]]]:
        """What became of the requests that began in each second of the run."""
        return sorted(self._by_second.items())


def percentile(times: Counter[int], q: float) -> int:
    """The least time that a share `q` of the requests did not exceed."""
    needed = q * times.total()
    seen = 0
    for time_ms in sorted(times):
        seen += times[time_ms]
        if seen >= needed:
            return time_ms
    return 0


def _two_digits(time_ms: float) -> int:
    whole = round(time_ms)
    return round(whole, 2 - len(str(whole))) if whole >= 100 else whole
