"""Every answer of a run, by what a client may believe of it."""

from __future__ import annotations

from collections import Counter

from loadtests.nonces.asking import verdict_on
from loadtests.nonces.judge import Verdict
from loadtests.openloop.connection import Exchange
from loadtests.openloop.ledger import GAVE_UP, Row

GRACE_MS = 250.0
"""How much later than its deadline an answer, or a word that there is none, may be."""
MOST_KEPT = 20
FAILED = (400, 422, 502, 504)
"""Of the refusals, those that say: it was tried, and came to nothing."""


NEVER = (Verdict.FOREIGN, Verdict.WRONG, Verdict.DROPPED)


class Tally:
    """`hear` is told of every try. The first of what must never be are kept, to be looked at."""

    def __init__(self) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.refusals: Counter[int] = Counter()
        self.requests = self.unanswered = self.hung = 0
        self.kept: list[tuple[Verdict, bytes, bytes]] = []

    def hear(self, row: Row, exchange: Exchange) -> None:
        """See `openloop.client.Listen`."""
        self.requests += 1
        if exchange.failure == GAVE_UP:
            self.hung += 1
            self.unanswered += 1
            return
        self.hung += _late_ms(row) > GRACE_MS
        verdict = verdict_on(exchange)
        self.verdicts[verdict] += 1
        if verdict is Verdict.REFUSED:
            self.refusals[exchange.answer.status] += 1
        if verdict in NEVER and len(self.kept) < MOST_KEPT:
            self.kept.append((verdict, exchange.request, b"".join(getattr(exchange.answer, "raw", ()))))

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
