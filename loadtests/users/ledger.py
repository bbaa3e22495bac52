"""How requests ended: counts and rounded times, in bounded memory.

Every request is counted once, under the stage in which it began. Times have two significant digits, so memory does not
grow with the number of requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

ANSWERED = "served"
MAX_OUTCOMES = 64  # outcomes come from the server: beyond this number they count as `other`


class Row(NamedTuple):
    """Stage, group, surface and ending. `kind` is the first word of an outcome: served, refused, ..."""

    stage: str
    group: str
    surface: str
    kind: str
    detail: str

    @property
    def outcome(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Times:
    def __init__(self, times_ms: Iterable[Counter[int]] = ()) -> None:
        self._counts: Counter[int] = Counter()
        for counts in times_ms:
            self._counts.update(counts)

    @property
    def count(self) -> int:
        return self._counts.total()

    def percentile_ms(self, q: float) -> int | None:
        """The least time that a share `q` of the requests does not exceed; None without requests."""
        return percentile(self._counts, q) if self._counts else None


class Ledger:
    def __init__(self) -> None:
        self._times_ms: defaultdict[Row, Counter[int]] = defaultdict(Counter)
        self._first_ms: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._by_second: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._unanswered_s: dict[int, float] = {}
        self._outcomes: set[str] = set()

    def record(self, row: Row, began_s: float, took_ms: float) -> None:
        """Record a request that began `began_s` after the start of the run."""
        if row.outcome not in self._outcomes and len(self._outcomes) >= MAX_OUTCOMES:
            row = row._replace(detail="other")
        self._outcomes.add(row.outcome)
        self._times_ms[row][_two_digits(took_ms)] += 1
        second = int(began_s)
        self._by_second[second][row.kind] += 1
        if row.kind != ANSWERED:
            self._unanswered_s[second] = max(began_s, self._unanswered_s.get(second, 0.0))

    def first_token(self, stage: str, group: str, took_ms: float) -> None:
        """Record a stream's time to the first token."""
        self._first_ms[stage, group][_two_digits(took_ms)] += 1

    @property
    def total(self) -> int:
        return sum(times.total() for times in self._times_ms.values())

    def count(self, kind: str) -> int:
        return sum(times.total() for row, times in self._times_ms.items() if row.kind == kind)

    def rows(self) -> list[tuple[Row, Times]]:
        """Every outcome and its times, in order."""
        return [(row, Times([times])) for row, times in sorted(self._times_ms.items())]

    def times(self, which: Callable[[Row], bool]) -> Times:
        return Times(times for row, times in self._times_ms.items() if which(row))

    def first_words(self, stage: str, group: str) -> Times:
        """Times to the first token of streams."""
        return Times([self._first_ms[stage, group]] if (stage, group) in self._first_ms else [])

    def unanswered_s(self) -> list[float]:
        """For each second with an unanswered request, when the last of them began."""
        return sorted(self._unanswered_s.values())

    def seconds(self) -> list[tuple[int, Counter[str]]]:
        """Outcomes of the requests by the second in which they began."""
        return sorted(self._by_second.items())


def percentile(times: Counter[int], q: float) -> int:
    """The least time that a share `q` of the requests does not exceed."""
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
