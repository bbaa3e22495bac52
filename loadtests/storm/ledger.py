"""The outcome of every try: each is entered once and ends once, or is under way.

Memory does not grow with the load: counts by second, tenant and code, and latency sketches. Seconds and codes beyond
their limits are counted under the last.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import TypeVar

from loadtests.load.answer import REFUSING
from loadtests.load.ledger import GAVE_UP, HELD_BACK, LATE, ON_TIME, Ledger, Row
from loadtests.storm.sliders import MAX_CLIENT_TIMEOUT_S, MAX_SECONDS
from services.contracts.storm import Counts, Second, TenantCounts
from services.core.quantile import Sketch

MAX_ROWS = ceil(MAX_SECONDS + MAX_CLIENT_TIMEOUT_S) + 3
MAX_CODES = 32
OTHER_CODES = "other"
GONE, REFUSED, FAILED = "gone", "refused", "failed"
ENDINGS = {ON_TIME: "on_time", LATE: "late", GAVE_UP: GONE}
LOST = {"connect": "no_connection", "closed": "connection_lost", "cut": "connection_lost"}
"""Names of failed connections, beside the router's codes."""
C = TypeVar("C", bound=Counts)


def ending_of(row: Row, outcome: str) -> tuple[str, str]:
    """The count of a try's outcome, and the code of a refusal or failure.

    The status decides: 429 and 503 are refusals. A 504 is a failure, because the request was admitted. Without a code,
    the status is the name.
    """
    if outcome in ENDINGS:
        return ENDINGS[outcome], ""
    kind, _, what = outcome.partition(":")
    if kind == "refused" or what == "bad_status":
        code_or_status = f"status_{row.status}" if row.code in (f"bare_{row.status}", str(row.status)) else row.code
        return REFUSED if row.status in REFUSING else FAILED, code_or_status
    return FAILED, LOST.get(what, what)


class Part:
    """One second, one tenant, or all. Latencies are those of answers."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.codes: dict[str, Counter[str]] = {REFUSED: Counter(), FAILED: Counter()}
        self.sources: Counter[str] = Counter()
        self.router_state: tuple[int | None, int | None] = (None, None)
        self._latency_s = Sketch(min_value=5e-4, max_value=120.0, refresh=0)

    def ended(self, row: Row, ending: str, code: str) -> None:
        self.counts[ending] += 1
        if code:
            _bounded(self.codes[ending], code)
        if row.source:
            _bounded(self.sources, row.source)
        if ending in ("on_time", "late") and row.latency_s is not None:
            self._latency_s.add(row.latency_s)

    def latency_ms(self, share: float) -> float | None:
        """The latency quantile of the answers; None without answers."""
        value_s = self._latency_s.quantile(share)
        return None if value_s is None else round(1000 * value_s, 1)

    def fill(self, target: C) -> C:
        """Set the counts and latencies of a wire type."""
        for name in Counts.__struct_fields__:
            setattr(target, name, self.counts[name])
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95)):
            setattr(target, name, self.latency_ms(share))
        return target


class Books(Ledger):
    """The ledger of one run. Times are seconds since its start."""

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
        """Requests, and those answered on time by any try."""
        return self.all.counts["asked"], self.all.counts["answered"]

    # called by the open loop

    def enter(self, row: Row) -> None:
        self.open += 1
        self._count("asked", row, row.intended_s)

    def began(self, row: Row, at_s: float) -> None:
        self.worst_lag_s = max(self.worst_lag_s, at_s - row.tried_s)
        self._count("sent", row, row.tried_s)

    def tried(self, row: Row, outcome: str) -> None:
        ending, code = ending_of(row, outcome)
        for part in self._parts(row, row.end_s or 0.0):
            part.ended(row, ending, code)

    def close(self, row: Row, ending: str) -> None:
        self.open -= 1
        if ending == ON_TIME:
            self._count("answered", row, row.end_s or 0.0)
        elif ending == HELD_BACK:
            self._count("held_back", row, row.tried_s)

    def router_state(self, at_s: float, waiting: int | None, level: int | None) -> None:
        self._second(at_s).router_state = waiting, level

    # results

    def series(self, until_s: float) -> list[Second]:
        """Every second until now, including those without events."""
        if until_s > 0:
            self._second(until_s)
        found = []
        for at, part in enumerate(self._seconds):
            waiting, level = part.router_state
            found.append(part.fill(Second(s=at, waiting=waiting, level=level, sources=dict(part.sources))))
        return found

    def tenants(self) -> list[TenantCounts]:
        """Counts by tenant, sorted by name."""
        return [
            part.fill(TenantCounts(id=name, asked=part.counts["asked"], answered=part.counts["answered"]))
            for name, part in sorted(self._tenants.items())
        ]

    def _count(self, name: str, row: Row, at_s: float) -> None:
        for part in self._parts(row, at_s):
            part.counts[name] += 1

    def _parts(self, row: Row, at_s: float) -> tuple[Part, Part, Part]:
        """The parts that count a request at this second."""
        return self.all, self._tenants.setdefault(row.tenant, Part()), self._second(at_s)

    def _second(self, at_s: float) -> Part:
        at = min(max(int(at_s), 0), MAX_ROWS - 1)
        self._seconds.extend(Part() for _ in range(at + 1 - len(self._seconds)))
        return self._seconds[at]

    def __repr__(self) -> str:
        return f"<Books {self.all.counts}, {self.under_way} under way>"


def _bounded(counts: Counter[str], code: str) -> None:
    counts[code if code in counts or len(counts) < MAX_CODES - 1 else OTHER_CODES] += 1
