"""One run: a stand, a load of questions that arrive whatever becomes of them, and troubles beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from loadtests.cluster.settling import left_over
from loadtests.cluster.stand import key_of
from loadtests.load.client import Client
from loadtests.load.figures import Figures, figures
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.runs.nonces.asking import Kept, Questions
from loadtests.runs.nonces.stand import TENANT, stand
from loadtests.runs.nonces.tally import Tally
from loadtests.runs.nonces.troubles import Troubles
from loadtests.stillness import Stillness

PER_S = 110.0
DEADLINE_MS = 2000.0
PATIENCE_MS = DEADLINE_MS + 5000.0
STREAMS = 0.5
LEAST_REQUESTS, MOST_REQUESTS = 20, 100_000
SETTLED_WITHIN_S = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What came of it. `left` is what the router still held when everybody had been answered."""

    tally: Tally
    troubles: Counter[str]
    figures: Figures
    seconds: float
    left: float

    @property
    def held(self) -> bool:
        return self.tally.honest and not self.left


def plan_of(requests: int, seed: int) -> Plan:
    """Paced, so that it is so many; half of them streams."""
    seconds = requests / PER_S
    tenant = Tenant(
        TENANT, (Step(0, PER_S),), arrivals="paced", deadline_ms=DEADLINE_MS, patience_ms=PATIENCE_MS,
        stream=STREAMS, key=key_of(TENANT),
    )  # fmt: skip
    edge = min(1.0, seconds / 4)
    return Plan(seconds=seconds + 0.5 / PER_S, tenants=(tenant,), seed=seed, warmup_s=edge, cooldown_s=edge)


async def play(requests: int, seed: int, say: Say) -> Result:
    """Ask so many questions. Raises StandError where the stand cannot be set up, or its router ends."""
    plan = plan_of(requests, seed)
    async with stand() as made:
        still = Stillness(lambda: [made.router.process.pid])
        tally = Tally(still.between)
        client = Client(
            plan, made.router.url, requests=Questions(made.router.url), answer=Kept, listen=tally.hear
        )  # fmt: skip
        troubles = Troubles(made, plan.seconds)
        making, beating = asyncio.create_task(troubles.go_on()), asyncio.create_task(still.beat())
        say(f"{requests:,} questions in {plan.seconds:.0f} s: {len(made.workers)} workers, {len(made.evil)} evil ones")
        try:
            ledger = await client.run(lambda at_s, _: say(f"  {at_s:4.0f} s  {tally!r}") if at_s % 10 < 1 else None)
        finally:
            for task in (making, beating):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        made.router.process.check()
        await troubles.read_evil()
        left = await left_over(made.inflight, SETTLED_WITHIN_S)
        return Result(tally, troubles.count, figures(plan, ledger), plan.seconds, left)
