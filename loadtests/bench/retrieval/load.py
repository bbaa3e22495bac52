"""Questions at a rate that does not depend on the answers, and their results.

    known       asked before, and answered from the cache
    refreshed   asked before, but a kept answer is accepted only if a search fails
    new         never asked before

Latency counts from the intended send time. The client's own lateness is part of it, and is also reported separately.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import msgspec

from loadtests.bench.retrieval.corpus import TENANT
from loadtests.load.answer import SERVED, Answer
from loadtests.load.arrivals import Ask
from loadtests.load.closed import post
from loadtests.load.connection import Exchange
from loadtests.load.figures import quantile_of
from loadtests.load.ledger import LATE, ON_TIME, Row
from loadtests.load.rates import at_rates

KNOWN, REFRESHED, NEW = "known", "refreshed", "new"
FRESH_S = 300.0


class _Body(msgspec.Struct):
    source: str
    reason: str | None = None


_read = msgspec.json.Decoder(_Body).decode


class Reply(Answer):
    __slots__ = ("reason", "source")

    def __init__(self) -> None:
        super().__init__()
        self.source = ""
        self.reason: str | None = None

    def outcome(self) -> tuple[str, str]:
        if self.status != 200:
            return "failed:bad_status", str(self.status)
        try:
            body = _read(b"".join(self._buffer))
        except msgspec.MsgspecError:
            return "failed:malformed", ""
        self.source, self.reason = body.source, body.reason
        return SERVED, ""


class Questions:
    def __init__(self, port: int, known: Sequence[str], new: Iterator[str], budget_ms: float) -> None:
        self._port = port
        self._new = new
        self._budget_ms = budget_ms
        self._known = known

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        kind = ask.tenant.name
        query = next(self._new) if kind == NEW else self._known[number % len(self._known)]
        return self.request(query, 0.0 if kind == REFRESHED else FRESH_S)

    def request(self, query: str, ttl_s: float = FRESH_S, *, hybrid: bool = True) -> bytes:
        body = {
            "query": query, "tenant": TENANT, "budget_ms": self._budget_ms, "cache_ttl_s": ttl_s, "hybrid": hybrid,
        }  # fmt: skip
        return post(self._port, "/retrieve", json.dumps(body).encode())

    def next_new(self, *, hybrid: bool = True) -> bytes:
        return self.request(next(self._new), hybrid=hybrid)

    def each_known(self) -> Iterator[bytes]:
        return map(self.request, self._known)


@dataclass(frozen=True)
class Seen:
    """The results of the questions that were due after the fault began."""

    asked: int
    unanswered: int
    ms: list[float]
    late_ms: list[float]
    sources: Counter[str]
    reasons: Counter[str]

    def quantile_ms(self, q: float) -> float:
        """Latency from the intended time; infinite for a question without an answer."""
        return quantile_of(self.ms, q)

    def late_quantile_ms(self, q: float) -> float:
        return quantile_of(self.late_ms, q)

    @property
    def mix(self) -> str:
        return ", ".join(f"{source} {count / self.asked:.0%}" for source, count in self.sources.most_common())

    @property
    def why(self) -> str:
        return ", ".join(f"{reason} {count / self.asked:.1%}" for reason, count in self.reasons.most_common())


async def offered(
    questions: Questions,
    port: int,
    per_s: Mapping[str, float],
    seconds: float,
    *,
    strike: Callable[[], Awaitable[None]] | None = None,
    after_s: float = 1.0,
) -> Seen:
    """Ask at these rates; after `after_s`, which does not count, call `strike` and count for `seconds`."""
    recorded = _Recorded()
    striking = asyncio.create_task(recorded.strike(after_s, strike)) if strike is not None else None
    ledger = await at_rates(port, per_s, questions, after_s + seconds, answer=Reply, listen=recorded.listen)
    if striking is not None:
        await striking
        after_s = recorded.struck_s
    return _seen([row for row in ledger.rows if row.intended_s >= after_s], recorded.replies)


class _Recorded:
    """The answers, and the time of the fault on the client's clock, which starts a moment after this program's."""

    def __init__(self) -> None:
        self.replies: dict[int, Reply] = {}
        self._began_at = math.inf
        self._struck_at = math.inf

    @property
    def struck_s(self) -> float:
        return self._struck_at - self._began_at

    def listen(self, row: Row, exchange: Exchange) -> None:
        if isinstance(exchange.answer, Reply):
            self.replies[row.number] = exchange.answer
        if exchange.sent_at is not None and row.last_sent_s is not None:
            self._began_at = exchange.sent_at - row.last_sent_s

    async def strike(self, after_s: float, strike: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(after_s)
        self._struck_at = perf_counter()
        await strike()


def _seen(rows: Sequence[Row], replies: Mapping[int, Reply]) -> Seen:
    served = [replies[row.number] for row in rows if row.ending in (ON_TIME, LATE)]
    return Seen(
        asked=len(rows),
        unanswered=len(rows) - len(served),
        ms=[_latency_ms(row) for row in rows],
        late_ms=[1000 * row.late_s for row in rows],
        sources=Counter(reply.source for reply in served),
        reasons=Counter(reply.reason for reply in served if reply.reason is not None and reply.reason != "fresh"),
    )


def _latency_ms(row: Row) -> float:
    return 1000 * row.latency_s if row.ending in (ON_TIME, LATE) and row.latency_s is not None else math.inf
