"""The load of a soak: identical rounds, each with a burst, clients that leave, and deadlines that cannot be met.

Few questions repeat, and cache entries expire soon: every path is used, and caches are full after two rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from loadtests.cluster.making import CACHE_TTL_S
from loadtests.judging.answers import Verdict
from loadtests.load.arrivals import Ask
from loadtests.load.client import Client
from loadtests.load.connection import Exchange
from loadtests.load.ledger import GAVE_UP, Row
from loadtests.load.plan import Plan, Tenant
from loadtests.runs.integrity.questions import (
    ASK_SHARE,
    MAX_TOKENS,
    STREAM_SHARE,
    Kept,
    Questions,
    plan_of,
    verdict_on,
)

ROUND_S = 30.0
PER_S = 50.0
BURST_FROM_S, BURST_S, BURST_PER_S = 20.0, 2.0, 400.0
DEADLINE_MS = 2000.0
LEAVERS, LEAVE_AFTER_MS = 0.05, 60.0
HURRIED, HURRIED_DEADLINE_MS = 0.05, 40.0
QUESTIONS = 500
WRONG = (Verdict.FOREIGN, Verdict.WRONG, Verdict.DROPPED)
ABOUT = f"""\
{PER_S:g} requests a second, `/ask` and chat, half of them streamed, and every {ROUND_S:g} s a burst of
{BURST_PER_S:g} a second for {BURST_S:g} s. {LEAVERS:.0%} of the clients leave after {LEAVE_AFTER_MS:g} ms,
{HURRIED:.0%} set a deadline of {HURRIED_DEADLINE_MS:g} ms, which cannot be met. The {QUESTIONS} questions repeat, and a
cached search is stale after {CACHE_TTL_S} s: every path is used, and every cache is full early."""


@dataclass
class Outcomes:
    """How the requests ended. `left`: clients that were planned to leave, and did."""

    verdicts: Counter[str] = field(default_factory=Counter)
    left: int = 0

    def record(self, row: Row, exchange: Exchange) -> None:
        if exchange.failure == GAVE_UP:
            self.left += 1
            return
        self.verdicts[verdict_on(exchange)] += 1

    @property
    def wrong(self) -> int:
        return sum(self.verdicts[verdict] for verdict in WRONG)


class Few(Questions):
    __slots__ = ()

    def bytes_of(self, ask: Ask, number: int) -> bytes:
        return super().bytes_of(ask, number % QUESTIONS)


async def one_round(url: str, number: int, seconds: float, outcomes: Outcomes) -> None:
    """Send load for `seconds`, until every request has ended."""
    plan = plan_of(seconds, PER_S, DEADLINE_MS, number)
    await Client(plan, url, _asks(plan), requests=Few(url), answer=Kept, listen=outcomes.record).run()


def _asks(plan: Plan) -> Iterator[Ask]:
    chance = Random(f"soak:{plan.seed}")
    by_name = {tenant.name: tenant for tenant in plan.tenants}
    at_s = 0.0
    while True:
        bursting = BURST_FROM_S <= at_s < BURST_FROM_S + BURST_S
        at_s += chance.expovariate(BURST_PER_S if bursting else PER_S)
        if at_s >= plan.seconds:
            return
        tenant = by_name["ask" if chance.random() < ASK_SHARE else "chat"]
        yield Ask(at_s, _behaviour(tenant, chance.random()), 16, MAX_TOKENS, chance.random() < STREAM_SHARE)


def _behaviour(tenant: Tenant, drawn: float) -> Tenant:
    """Most clients wait; some leave early, some set a deadline that cannot be met."""
    if drawn < LEAVERS:
        return replace(tenant, client_timeout_ms=LEAVE_AFTER_MS)
    if drawn < LEAVERS + HURRIED:
        return replace(tenant, deadline_ms=HURRIED_DEADLINE_MS)
    return tenant
