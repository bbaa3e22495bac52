"""Collects every request that has ended, as an entry for the checker."""

from __future__ import annotations

from collections import Counter

from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Seen
from loadtests.load.connection import Exchange
from loadtests.load.ledger import GAVE_UP, Row
from loadtests.runs.integrity.checker import Entry
from loadtests.runs.integrity.questions import verdict_on, word_of

MAX_KEPT = 10


class Listener:
    """`record` is `loadtests.load.client.Listen`. `wire`: these clients have a wire of their own before the router."""

    def __init__(self, *, wire: bool = False) -> None:
        self.entries: list[Entry] = []
        self.verdicts: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        self._wire = wire

    def record(self, row: Row, exchange: Exchange) -> None:
        verdict, id, answer = verdict_on(exchange), word_of(exchange), exchange.answer
        gave_up = exchange.failure == GAVE_UP
        self.verdicts[GAVE_UP if gave_up else verdict] += 1
        if verdict in (Verdict.FOREIGN, Verdict.WRONG) and len(self.bodies) < MAX_KEPT:
            self.bodies[id] = b"".join(getattr(answer, "raw", ()))
        sent_s = exchange.ended_at if exchange.sent_at is None else exchange.sent_at
        seen = Seen(
            id, sent_s, exchange.ended_at, row.deadline_ms / 1000, verdict, answer.status, not exchange.failure,
            hint_ms=answer.hint_ms, invited=answer.should_retry,
        )  # fmt: skip
        connected = exchange.failure != "connect"
        self.entries.append(Entry(seen, self._wire, gave_up, row.lag_s, connected, answer.spoken))
