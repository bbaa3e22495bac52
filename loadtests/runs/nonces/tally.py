"""Every answer of a run, by what a client may believe of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from loadtests.load.connection import Exchange
from loadtests.load.ledger import GAVE_UP, Row
from loadtests.runs.nonces.asking import verdict_on
from loadtests.runs.nonces.judge import Verdict

GRACE_MS = 250.0
"""How much later than its deadline an answer, or a word that there is none, may be."""
MOST_KEPT = 20
FAILED = (400, 422, 502, 504)
"""Of the refusals, those that say: it was tried, and came to nothing."""


NEVER = (Verdict.FOREIGN, Verdict.WRONG, Verdict.DROPPED)


Still = Callable[[float, float], float]


def _never(begin: float, end: float) -> float:
    """A machine that does not stand still."""
    return 0.0


class Tally:
    """`hear` is told of every try. The first of what must never be are kept, to be looked at.

    `still` says how long the machine stood still in a stretch of `perf_counter`: late by that alone is not hung.
    """

    def __init__(self, still: Still = _never) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.refusals: Counter[int] = Counter()
        self.requests = self.unanswered = 0
        self._still = still
        self._late: list[tuple[float, float, float]] = []
        self.kept: list[tuple[Verdict, bytes, bytes]] = []

    def hear(self, row: Row, exchange: Exchange) -> None:
        """See `loadtests.load.client.Listen`."""
        self.requests += 1
        if exchange.failure == GAVE_UP:
            self.unanswered += 1
            return
        if (late_ms := _late_ms(row)) > GRACE_MS:
            self._late.append((exchange.ended_at - late_ms / 1000, exchange.ended_at, late_ms))
        verdict = verdict_on(exchange)
        self.verdicts[verdict] += 1
        if verdict is Verdict.REFUSED:
            self.refusals[exchange.answer.status] += 1
        if verdict in NEVER and len(self.kept) < MOST_KEPT:
            self.kept.append((verdict, exchange.request, b"".join(getattr(exchange.answer, "raw", ()))))

    @property
    def hung(self) -> int:
        """Those over later than the grace after their deadline, and those that never were."""
        late = sum(late_ms - 1000 * self._still(due, end) > GRACE_MS for due, end, late_ms in self._late)
        return self.unanswered + late

    @property
    def failed(self) -> int:
        """Refusals after a worker had been asked: it failed, or the time was up."""
        return sum(count for status, count in self.refusals.items() if status in FAILED)

    @property
    def honest(self) -> bool:
        """Whether nothing happened that must never be, whatever the machine was doing."""
        return not any(self.verdicts[verdict] for verdict in NEVER) and not self.unanswered

    def __repr__(self) -> str:
        return f"<Tally {self.requests} requests, {dict(self.verdicts)}, {self.hung} hung>"


def _late_ms(row: Row) -> float:
    """How long after its deadline it ended, less what the client took to notice."""
    if row.end_s is None or row.last_sent_s is None:
        return 0.0
    return (row.end_s - row.lag_s - row.last_sent_s) * 1000 - row.deadline_ms
