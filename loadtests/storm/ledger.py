"""What became of every attempt: each is entered once and ends once, or is still open.

Nothing here grows with the load: counts by second, by tenant and by code, and latencies as histograms. Seconds beyond
the last that a run can have, and codes beyond as many as a router has, are counted under their last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import TypeVar

from loadtests.storm.plan import MOST_PATIENCE_S, MOST_SECONDS
from loadtests.storm.spread import Spread
from services.contracts.storm import Counts, Second, TenantTold

MOST_ROWS = ceil(MOST_SECONDS + MOST_PATIENCE_S) + 3
MOST_CODES = 32
OTHER_CODES = "other"
C = TypeVar("C", bound=Counts)


class Ending(StrEnum):
    """How an attempt ended, as its client saw it; the value is the count's name."""

    ON_TIME = "on_time"
    LATE = "late"
    REFUSED = "refused"
    FAILED = "failed"
    GONE = "gone"


@dataclass(slots=True)
class _Row:
    """One second, or one tenant, or all."""

    counts: Counter[str] = field(default_factory=Counter)
    latency: Spread = field(default_factory=Spread)

    def fill(self, told: C) -> C:
        """The counts, in the words of the wire."""
        for name in Counts.__struct_fields__:
            setattr(told, name, self.counts[name])
        return told


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt. `latency_s` counts from the moment it was meant to be sent."""

    ending: Ending
    code: str = ""
    latency_s: float = 0.0
    source: str = ""
    """Where its passages came from, where it asked for any."""


class Ledger:
    """One run's. Times are seconds since its beginning."""

    def __init__(self) -> None:
        self.all = _Row()
        self.refused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.sources: Counter[str] = Counter()
        self._seconds: list[_Row] = []
        self._sources: list[Counter[str]] = []
        self._heard: list[tuple[int | None, int | None]] = []
        self._tenants: dict[str, _Row] = {}
        self._asked: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self.worst_lag_s = 0.0

    @property
    def open(self) -> int:
        """Attempts without an ending."""
        counts = self.all.counts
        return counts["sent"] - sum(counts[ending] for ending in Ending)

    def asked(self, tenant: str) -> None:
        """Somebody has come."""
        self._asked[tenant] += 1

    def sent(self, tenant: str, meant_s: float, lag_s: float) -> None:
        """An attempt is on its way, `lag_s` after the moment it was meant for."""
        self.worst_lag_s = max(self.worst_lag_s, lag_s)
        self._count("sent", tenant, meant_s)

    def held_back(self, tenant: str, meant_s: float) -> None:
        """An attempt was not sent: this bench does not send more."""
        self._count("held_back", tenant, meant_s)

    def ended(self, tenant: str, at_s: float, end: Ended) -> None:
        """An attempt is over."""
        self._count(end.ending, tenant, at_s)
        if end.ending in (Ending.ON_TIME, Ending.LATE):
            for row in (self.all, self._tenant(tenant), self._second(at_s)):
                row.latency.add(end.latency_s)
        if end.ending is Ending.REFUSED:
            _bounded(self.refused, end.code)
        elif end.ending is Ending.FAILED:
            _bounded(self.failed, end.code)
        if end.source:
            _bounded(self.sources, end.source)
            self._second(at_s)
            _bounded(self._sources[self._at(at_s)], end.source)

    def answered(self, tenant: str) -> None:
        """Somebody has got an answer on time, by whichever attempt."""
        self._answered[tenant] += 1

    def heard(self, at_s: float, waiting: int | None, level: int | None) -> None:
        """What the router says of itself."""
        self._second(at_s)
        self._heard[self._at(at_s)] = (waiting, level)

    @property
    def people(self) -> tuple[int, int]:
        """How many asked, and how many of them were answered on time."""
        return self._asked.total(), self._answered.total()

    def series(self, until_s: float) -> list[Second]:
        """Every second until now, those without an event too."""
        if until_s > 0:
            self._second(until_s)
        found = []
        for s, (row, sources, heard) in enumerate(zip(self._seconds, self._sources, self._heard, strict=True)):
            second = row.fill(Second(s=s))
            second.p50_ms, second.p95_ms = row.latency.quantile_ms(0.5), row.latency.quantile_ms(0.95)
            (second.waiting, second.level), second.sources = heard, dict(sources)
            found.append(second)
        return found

    def tenants(self) -> list[TenantTold]:
        """Each, by name."""
        found = []
        for tenant, row in sorted(self._tenants.items()):
            told = row.fill(TenantTold(id=tenant, asked=self._asked[tenant], answered=self._answered[tenant]))
            told.p50_ms, told.p95_ms = row.latency.quantile_ms(0.5), row.latency.quantile_ms(0.95)
            found.append(told)
        return found

    def _count(self, name: str, tenant: str, at_s: float) -> None:
        for row in (self.all, self._tenant(tenant), self._second(at_s)):
            row.counts[name] += 1

    def _tenant(self, tenant: str) -> _Row:
        return self._tenants.setdefault(tenant, _Row())

    def _second(self, at_s: float) -> _Row:
        at = self._at(at_s)
        while len(self._seconds) <= at:
            self._seconds.append(_Row())
            self._sources.append(Counter())
            self._heard.append((None, None))
        return self._seconds[at]

    @staticmethod
    def _at(at_s: float) -> int:
        return min(max(int(at_s), 0), MOST_ROWS - 1)

    def __repr__(self) -> str:
        return f"<Ledger {self.all.counts}, {self.open} open>"


def _bounded(counts: Counter[str], code: str) -> None:
    counts[code if code in counts or len(counts) < MOST_CODES - 1 else OTHER_CODES] += 1
