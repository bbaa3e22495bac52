"""What became of every try: each is entered once and ends once, or is still under way.

It keeps no rows, and nothing here grows with the load: counts by second, by tenant and by code, and latencies as
sketches. Seconds beyond the last that a run can have, and codes beyond as many as a router has, are counted under their
last.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TypeVar

from loadtests.load.answer import REFUSING
from loadtests.load.ledger import GAVE_UP, HELD_BACK, LATE, ON_TIME, Ledger, Row
from loadtests.storm.sliders import MOST_PATIENCE_S, MOST_SECONDS
from services.contracts.storm import Counts, Second, TenantCounts
from services.core.quantile import Sketch

MOST_ROWS = ceil(MOST_SECONDS + MOST_PATIENCE_S) + 3
MOST_CODES = 32
OTHER_CODES = "other"
GONE, REFUSED, FAILED = "gone", "refused", "failed"
ENDINGS = {ON_TIME: "on_time", LATE: "late", GAVE_UP: GONE}
LOST = {"connect": "no_connection", "closed": "connection_lost", "cut": "connection_lost"}
"""How a failed connection is called beside the router's codes."""
C = TypeVar("C", bound=Counts)


def ending_of(row: Row, outcome: str) -> tuple[str, str]:
    """The count that a try goes into, and the code where it was refused or failed.

    By its status, 429 and 503 are refusals, whatever their code. A 504 is a failure: the request was let in. An answer
    without a code is called by its status.
    """
    if outcome in ENDINGS:
        return ENDINGS[outcome], ""
    kind, _, what = outcome.partition(":")
    if kind == "refused" or what == "bad_status":
        said = f"status_{row.status}" if row.code in (f"bare_{row.status}", str(row.status)) else row.code
        return REFUSED if row.status in REFUSING else FAILED, said
    return FAILED, LOST.get(what, what)


class Part:
    """One second, or one tenant, or all. The latencies are those of its answers."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.codes: dict[str, Counter[str]] = {REFUSED: Counter(), FAILED: Counter()}
        self.sources: Counter[str] = Counter()
        self.heard: tuple[int | None, int | None] = (None, None)
        self._latency_s = Sketch(min_value=5e-4, max_value=120.0, refresh=0)

    def ended(self, row: Row, ending: str, code: str) -> None:
        """A try of this part is over."""
        self.counts[ending] += 1
        if code:
            _bounded(self.codes[ending], code)
        if row.source:
            _bounded(self.sources, row.source)
        if ending in ("on_time", "late") and row.latency_s is not None:
            self._latency_s.add(row.latency_s)

    def latency_ms(self, share: float) -> float | None:
        """What this share of its answers did not exceed; None where there was none."""
        value_s = self._latency_s.quantile(share)
        return None if value_s is None else round(1000 * value_s, 1)

    def fill(self, told: C) -> C:
        """The counts and the latencies, in the words of the wire."""
        for name in Counts.__struct_fields__:
            setattr(told, name, self.counts[name])
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95)):
            setattr(told, name, self.latency_ms(share))
        return told


class Books(Ledger):
    """One run's. Times are seconds since its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.all = Part()
        self.worst_lag_s = 0.0
        self._seconds: list[Part] = []
        self._tenants: dict[str, Part] = {}

    @property
    def under_way(self) -> int:
        """Tries without an ending."""
        counts = self.all.counts
        return counts["sent"] - sum(counts[name] for name in (*ENDINGS.values(), REFUSED, FAILED))

    @property
    def people(self) -> tuple[int, int]:
        """How many asked, and how many of them were answered on time, by whichever try."""
        return self.all.counts["asked"], self.all.counts["answered"]

    # what the open loop tells

    def enter(self, row: Row) -> None:
        """See `Ledger`: somebody has come."""
        self.open += 1
        self._count("asked", row, row.intended_s)

    def began(self, row: Row, at_s: float) -> None:
        """See `Ledger`."""
        self.worst_lag_s = max(self.worst_lag_s, at_s - row.tried_s)
        self._count("sent", row, row.tried_s)

    def tried(self, row: Row, outcome: str) -> None:
        """See `Ledger`."""
        ending, code = ending_of(row, outcome)
        for part in self._parts(row, row.end_s or 0.0):
            part.ended(row, ending, code)

    def close(self, row: Row, ending: str) -> None:
        """See `Ledger`: somebody has an answer, or asks no more."""
        self.open -= 1
        if ending == ON_TIME:
            self._count("answered", row, row.end_s or 0.0)
        elif ending == HELD_BACK:
            self._count("held_back", row, row.tried_s)

    def heard(self, at_s: float, waiting: int | None, level: int | None) -> None:
        """What the router says of itself."""
        self._second(at_s).heard = waiting, level

    # what is told

    def series(self, until_s: float) -> list[Second]:
        """Every second until now, those without an event too."""
        if until_s > 0:
            self._second(until_s)
        found = []
        for at, part in enumerate(self._seconds):
            waiting, level = part.heard
            found.append(part.fill(Second(s=at, waiting=waiting, level=level, sources=dict(part.sources))))
        return found

    def tenants(self) -> list[TenantCounts]:
        """Each, by name."""
        return [
            part.fill(TenantCounts(id=name, asked=part.counts["asked"], answered=part.counts["answered"]))
            for name, part in sorted(self._tenants.items())
        ]

    def _count(self, name: str, row: Row, at_s: float) -> None:
        for part in self._parts(row, at_s):
            part.counts[name] += 1

    def _parts(self, row: Row, at_s: float) -> tuple[Part, Part, Part]:
        """What a request belongs to at this second."""
        return self.all, self._tenants.setdefault(row.tenant, Part()), self._second(at_s)

    def _second(self, at_s: float) -> Part:
        at = min(max(int(at_s), 0), MOST_ROWS - 1)
        self._seconds.extend(Part() for _ in range(at + 1 - len(self._seconds)))
        return self._seconds[at]

    def __repr__(self) -> str:
        return f"<Books {self.all.counts}, {self.under_way} under way>"


def _bounded(counts: Counter[str], code: str) -> None:
    counts[code if code in counts or len(counts) < MOST_CODES - 1 else OTHER_CODES] += 1
