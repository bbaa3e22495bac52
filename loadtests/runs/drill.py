"""One stand, its capacity, and loads run against it: what every case is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtests.cluster import readings
from loadtests.cluster.meters import Meter
from loadtests.cluster.readings import Used
from loadtests.cluster.stand import Shape, Stand, key_of, stand
from loadtests.load import capacity
from loadtests.load.capacity import Capacity
from loadtests.load.client import Client
from loadtests.load.figures import Figures, Share, figures
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan, Retry, Size, Step, Tenant

MOST_SECONDS = 45.0
SPREAD = 0.12  # of answer lengths, about their median
CALM_S = 1.5  # between two loads: what still waits is answered or expires
WARMUP_S = COOLDOWN_S = 3.0

Say = Callable[[str], None]
Trouble = Callable[[Stand], Coroutine[Any, Any, Meter]]
"""What is done to the workers during a load; it returns what those had counted that are gone."""


@dataclass(frozen=True)
class Run:
    """One load that has been run."""

    name: str
    plan: Plan
    ledger: Ledger
    figures: Figures
    used: Used

    def share(self, tenant: str) -> Share:
        return self.figures.tenants[tenant]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "figures": self.figures.as_dict(),
            "wasted": self.used.meter.wasted,
            "cpu": asdict(self.used.cpu),
            "miscounted": dict(self.used.miscounted),
        }


@dataclass
class Drill:
    """What a case works with."""

    stand: Stand
    capacity: Capacity
    say: Say
    route: str = "completions"
    runs: list[Run] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        return self.stand.shape

    def tenant(self, name: str, load: float, *, size: int = 1, **more: Any) -> Tenant:
        """A tenant that asks for `load` times the capacity, in answers `size` times as long as the usual one.

        Their lengths differ by a tenth or so. Sequences of one length that start together end together, for ever: a
        worker whose slots have fallen into step frees them all at once, and a newcomer waits for a whole service.
        """
        tokens = self.shape.answer_tokens * size
        rate = load * self.capacity.tokens_per_s / tokens
        steps = more.pop("steps", (Step(0, rate),))
        return Tenant(name, steps, answer_tokens=Size(tokens, sigma=SPREAD, most=2 * tokens), key=key_of(name), **more)

    def rate(self, load: float) -> float:
        """Usual requests a second at a multiple of the capacity."""
        return load * self.capacity.per_s

    def goodput(self, run: Run) -> float:
        """Tokens of answers on time, over what the workers can make: 1 is all they have."""
        return run.figures.all.goodput_tokens_per_s / self.capacity.tokens_per_s

    def client(self, plan: Plan) -> Client:
        """Who asks."""
        return Client(plan, self.stand.url)

    async def run(
        self,
        name: str,
        *tenants: Tenant,
        seconds: float,
        trouble: Trouble | None = None,
        warmup_s: float = WARMUP_S,
        cooldown_s: float = COOLDOWN_S,
        calm_s: float = CALM_S,
    ) -> Run:
        """Run a load, with trouble beside it if there is to be some."""
        if seconds > MOST_SECONDS:
            raise ValueError(f"{name}: {seconds:g} s is longer than a load may last, {MOST_SECONDS:g} s")
        await asyncio.sleep(calm_s)
        plan = Plan(seconds, tenants, self.route, warmup_s=warmup_s, cooldown_s=cooldown_s)
        client, before = self.client(plan), await readings.read(self.stand)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(client.run())
            troubling = group.create_task((trouble or _no_trouble)(self.stand))
        self.stand.check()
        ledger, after = sending.result(), await readings.read(self.stand)
        used = readings.between(before, after, troubling.result(), ledger.tries)
        run = Run(name, plan, ledger, figures(plan, ledger), used)
        self.runs.append(run)
        self.say(self._told(run))
        return run

    def _told(self, run: Run) -> str:
        everyone = run.figures.all
        told = [
            f"{everyone.offered_per_s:,.0f}/s offered",
            f"goodput {self.goodput(run):.3f} of capacity",
            f"answers p95 {everyone.answers_ms.p95:.0f} ms",
            f"refusals p50 {everyone.refusals_ms.p50:.1f} ms",
            f"router {run.used.cpu.router:.0%} of a core",
            f"others {run.used.cpu.others:.0%} of the machine",
            *run.figures.notes,
        ]
        return f"  {run.name}: {', '.join(told)}"


async def _no_trouble(stand: Stand) -> Meter:
    return Meter()


@asynccontextmanager
async def drill(shape: Shape, tenants: Sequence[str], say: Say) -> AsyncIterator[Drill]:
    """Start a stand and measure its capacity."""
    async with stand(shape, tenants) as made:
        measured = await capacity.measure(made)
        say(f"  {shape}: {measured.per_s:.1f} answers/s, service p50 {measured.service_ms.p50:.0f} ms")
        yield Drill(made, measured, say)


def storming(most: int) -> Retry:
    """Clients who ask again at once, whatever they were told."""
    return Retry("immediate", most)
