"""Workers with a subject before them, their capacity, and the loads that are run against it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtests.cluster import readings
from loadtests.cluster.meters import Meter
from loadtests.cluster.readings import Used
from loadtests.cluster.stand import Stand
from loadtests.load.asking import Questions
from loadtests.load.capacity import Capacity
from loadtests.load.client import Client
from loadtests.load.figures import Figures, Share, figures
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.report.progress import Say
from loadtests.runs.matrix.asking import PASSAGES, Chats, Reply, question

MAX_SECONDS = 45.0
WARM_UP_PER_S = 5.0
PATIENT_MS = 20_000.0

Trouble = Callable[[Stand], Coroutine[Any, Any, Meter]]
"""What is done to the workers during a load. It returns the counters of workers that were killed."""


@dataclass(frozen=True)
class Run:
    name: str
    plan: Plan
    ledger: Ledger
    figures: Figures
    used: Used

    def share(self, tenant: str) -> Share:
        return self.figures.tenants[tenant]


@dataclass
class Setup:
    """Runs the loads of a scenario. `key`: of a subject with a single key. `asks`: questions about documents. `enters`:
    the number of each tenant's frontend, if not the first.
    """

    stand: Stand
    capacity: Capacity
    say: Say
    key: str | None = None
    asks: bool = False
    enters: Mapping[str, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def goodput(self, run: Run) -> float:
        """Tokens of answers on time over the capacity in tokens: 1 is all that the workers have."""
        return run.figures.all.goodput_tokens_per_s / self.capacity.tokens_per_s

    def client(self, plan: Plan) -> Client:
        url, urls = self.stand.url, {tenant.name: self._url_of(tenant.name) for tenant in plan.tenants}
        requests = Questions(url, question, PASSAGES) if self.asks else Chats(url, self.key, urls)
        return Client(plan, url, requests=requests, answer=Reply, urls=urls)

    def _url_of(self, tenant: str) -> str:
        fronts = self.stand.fronts
        return fronts[self.enters.get(tenant, 0) % len(fronts)].url

    async def warm_up(self, tenants: Sequence[str], seconds: float) -> None:
        """A few requests of one tenant at each frontend."""
        if seconds > 0:
            steps = (Step(0, WARM_UP_PER_S),)
            firsts = {self._url_of(name): name for name in reversed(tenants)}.values()
            few = tuple(Tenant(name, steps, arrivals="paced", deadline_ms=PATIENT_MS) for name in firsts)
            await self.client(Plan(seconds, few, warmup_s=0, cooldown_s=0)).run()

    async def run(
        self,
        name: str,
        *tenants: Tenant,
        seconds: float,
        warmup_s: float,
        cooldown_s: float,
        calm_s: float,
        trouble: Trouble | None = None,
    ) -> Run:
        """Run a load after a pause of `calm_s`, with the trouble beside it. Raises ValueError if it is too long."""
        if seconds > MAX_SECONDS:
            raise ValueError(f"{name}: {seconds:g} s is longer than a load may last, {MAX_SECONDS:g} s")
        await asyncio.sleep(calm_s)
        plan = Plan(seconds, tenants, warmup_s=warmup_s, cooldown_s=cooldown_s)
        client, before = self.client(plan), await readings.read(self.stand)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(client.run())
            troubling = group.create_task((trouble or _no_trouble)(self.stand))
        self.stand.check()
        ledger, after = sending.result(), await readings.read(self.stand)
        used = readings.between(before, after, troubling.result(), ledger.tries)
        run = Run(name, plan, ledger, figures(plan, ledger), used)
        self.runs.append(run)
        self.say(self._summary(run))
        return run

    def _summary(self, run: Run) -> str:
        total = run.figures.all
        shown = [
            f"{total.offered_per_s:,.0f}/s offered",
            f"goodput {self.goodput(run):.3f} of capacity",
            f"answers p95 {total.answers_ms.p95:.0f} ms",
            f"refusals p50 {total.refusals_ms.p50:.1f} ms",
            f"router {run.used.cpu.router:.0%} of a core",
            f"others {run.used.cpu.others:.0%} of the machine",
            *run.figures.notes,
        ]
        return f"  {run.name}: {', '.join(shown)}"


async def _no_trouble(stand: Stand) -> Meter:
    return Meter()
