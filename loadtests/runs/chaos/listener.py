"""Every try that ended, as an entry for the checker."""

from __future__ import annotations

from collections import Counter

from loadtests.load.connection import Exchange
from loadtests.load.ledger import GAVE_UP, Row
from loadtests.runs.chaos.checker import Entry
from loadtests.runs.chaos.questions import verdict_on
from loadtests.runs.nonces.asking import word_of
from loadtests.runs.nonces.judge import Verdict

MOST_KEPT = 10


class Listener:
    """`hear` is `loadtests.load.client.Listen`. `wire`: these clients have one of their own before the router."""

    def __init__(self, *, wire: bool) -> None:
        self.entries: list[Entry] = []
        self.verdicts: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        self._wire = wire

    def hear(self, row: Row, exchange: Exchange) -> None:
        """It has ended."""
        verdict = None if exchange.failure == GAVE_UP else verdict_on(exchange)
        id = word_of(exchange)
        self.verdicts[verdict or GAVE_UP] += 1
        if verdict in (Verdict.FOREIGN, Verdict.WRONG) and len(self.bodies) < MOST_KEPT:
            self.bodies[id] = b"".join(getattr(exchange.answer, "raw", ()))
        sent_s = exchange.ended_at if exchange.sent_at is None else exchange.sent_at
        entry = Entry(
            id, sent_s, exchange.ended_at, row.deadline_ms / 1000, verdict, self._wire, row.lag_s,
            connected=exchange.failure != "connect",
        )  # fmt: skip
        self.entries.append(entry)
