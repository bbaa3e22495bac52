"""The loads that every gateway gets, and what is read off each. Clients leave at their deadline, as clients do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from loadtests.cluster.stand import Shape
from loadtests.load.client import Client
from loadtests.load.figures import Quantiles
from loadtests.load.ledger import GAVE_UP, LATE, ON_TIME
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.drill import Drill, Run
from loadtests.runs.peers.asking import Chats, Reply
from loadtests.runs.peers.cell import NOTHING
from loadtests.runs.peers.gateways import Deadlines

BIG = 10  # times as long as a usual answer
SHAPE = Shape()
ALONE_S = 12.0
BESIDE_S = 16.0
WARM_UP_PER_S = 5
PATIENT_MS = 20_000
UNDER_PER_S = 102  # about half of what two workers of 8 slots and 80 ms answer
OVER_PER_S = 402  # about twice


@dataclass
class PeerDrill(Drill):
    """A drill whose client speaks to any of the gateways; `key` where one knows a single key."""

    key: str | None = field(default=None, kw_only=True)

    def client(self, plan: Plan) -> Client:
        return Client(plan, self.stand.url, requests=Chats(self.stand.url, self.key), answer=Reply)

    async def warm_up(self, seconds: float) -> None:
        """A few requests that do not count."""
        if seconds > 0:
            few = Tenant("a", (Step(0, WARM_UP_PER_S),), arrivals="paced", deadline_ms=PATIENT_MS)
            await self.client(Plan(seconds, (few,), warmup_s=0, cooldown_s=0)).run()


@dataclass(frozen=True, slots=True)
class Case:
    """One load. Targets are Weir's; the same figures of the others stand beside them."""

    name: str
    about: str
    tenants: tuple[str, ...]
    deadlines: Deadlines
    play: Callable[[Drill], Coroutine[Any, Any, list[Figure]]]


def leaving(drill: Drill, name: str, load: float, deadline_ms: float, size: int = 1, **more: Any) -> Tenant:
    """A tenant whose clients hang up at their deadline: what `abortonclose` is there for."""
    return drill.tenant(name, load, size=size, deadline_ms=deadline_ms, patience_ms=deadline_ms, **more)


async def under(drill: Drill) -> list[Figure]:
    return await _at(drill, UNDER_PER_S, 0.99)


async def over(drill: Drill) -> list[Figure]:
    return await _at(drill, OVER_PER_S, None)


async def _at(drill: Drill, per_s: int, on_time: float | None) -> list[Figure]:
    run = await drill.run(f"{per_s}/s", leaving(drill, "a", 1, 1000, steps=(Step(0, per_s),)), seconds=ALONE_S)
    everyone = run.figures.all
    return [
        Figure("answered on time", everyone.on_time, "%", on_time),
        Figure("answered on time, each second", everyone.goodput_per_s),
        Figure("admitted p95", p95(everyone.answers_ms), "ms", at_least=False),
        used(run),
    ]


async def ten_times(drill: Drill) -> list[Figure]:
    run = await drill.run("10x, SLO 1 s", leaving(drill, "a", 10, 1000), seconds=ALONE_S)
    everyone = run.figures.all
    return [
        at_least("goodput / capacity", drill.goodput(run), 0.97),
        Figure("admitted p50", p50(everyone.answers_ms), "ms", at_least=False),
        at_most("admitted p95", p95(everyone.answers_ms), 400, "ms"),
        at_most("refusals p50", p50(everyone.refusals_ms), 5, "ms"),
        at_least("refusals that say when to come back", hinted(run), 1.0, "%"),
        Figure("refusals with a time of their own", own_hints(run), "%"),
        Figure("left without an answer", gave_up(run), "%", at_least=False),
        Figure("work of the workers that nobody got", unheard(run), "%", at_least=False),
        used(run),
    ]


async def short_deadline(drill: Drill) -> list[Figure]:
    run = await drill.run("250 ms at 3x", leaving(drill, "a", 3, 250), seconds=ALONE_S)
    everyone = run.figures.all
    return [
        at_least("goodput / capacity", drill.goodput(run), 0.96),
        Figure("refusals p50", p50(everyone.refusals_ms), "ms", at_least=False),
        Figure("work of the workers that nobody got", unheard(run), "%", at_least=False),
    ]


async def light_and_heavy(drill: Drill) -> list[Figure]:
    return await _beside(drill, leaving(drill, "light", 0.2, 1000), leaving(drill, "heavy", 4, 1000))


async def tight_and_loose(drill: Drill) -> list[Figure]:
    return await _beside(drill, leaving(drill, "tight", 0.3, 300), leaving(drill, "loose", 3, 3000))


async def small_and_big(drill: Drill) -> list[Figure]:
    return await _beside(drill, leaving(drill, "small", 0.25, 1000), leaving(drill, "big", 4, 4000, BIG))


async def _beside(drill: Drill, under_its_share: Tenant, over_it: Tenant) -> list[Figure]:
    name = under_its_share.name
    run = await drill.run(f"{name} beside {over_it.name}", under_its_share, over_it, seconds=BESIDE_S)
    share = run.share(name)
    return [
        at_least(f"{name} tenant served on time", share.on_time, 0.99, "%"),
        Figure(f"{name} tenant's p95", p95(share.answers_ms), "ms", at_least=False),
        Figure("goodput / capacity", drill.goodput(run)),
    ]


def p50(found: Quantiles) -> float:
    return found.p50 if found.count else NOTHING


def p95(found: Quantiles) -> float:
    return found.p95 if found.count else NOTHING


def hinted(run: Run) -> float:
    """Share of the refusals that say when to come back, of those where coming back could help: a deadline that has
    passed, or that no wait would let it meet, is none. Without refusals there is nothing to say: 0."""
    useful = [each for each in run.ledger.refusals if each.should_retry or not each.code.startswith("deadline_")]
    return sum(refusal.hint_ms is not None for refusal in useful) / max(1, len(useful))


def own_hints(run: Run) -> float:
    """Share of the hints that differ from the commonest: one time for all brings all back together."""
    hints = [each.hint_ms for each in run.ledger.refusals if each.hint_ms is not None]
    return 1 - max(Counter(hints).values()) / len(hints) if hints else 0.0


def gave_up(run: Run) -> float:
    """Share of the window's requests whose clients left at their deadline, or whose connection failed."""
    endings = run.figures.all.endings
    lost = sum(count for ending, count in endings.items() if ending == GAVE_UP or ending.startswith("failed:"))
    return lost / max(1, run.figures.all.arrivals)


def unheard(run: Run) -> float:
    """Share of the tokens that the workers wrote, in the whole load, that no client got."""
    got = sum(row.tokens for row in run.ledger.rows if row.ending in (ON_TIME, LATE))
    written = run.used.meter.tokens
    return max(0.0, 1 - got / written) if written else 0.0


def used(run: Run) -> Figure:
    return Figure("gateway's processor time, of one core", run.used.cpu.router, "%", at_least=False)


CASES = (
    Case("under", f"{UNDER_PER_S} requests/s, about half of capacity, SLO 1 s", ("a",), Deadlines(1000, 1000), under),
    Case("over", f"{OVER_PER_S} requests/s, about twice capacity, SLO 1 s", ("a",), Deadlines(1000, 1000), over),
    Case("ten_times", "one tenant at 10 times capacity, SLO 1 s", ("a",), Deadlines(1000, 1000), ten_times),
    Case("short_deadline", "answers wanted in 250 ms, at 3 times capacity; the service promises 1 s", ("a",),
         Deadlines(1000, 250), short_deadline),
    Case("light_and_heavy", "a tenant at 0.2 beside one at 4 times capacity, SLO 1 s", ("light", "heavy"),
         Deadlines(1000, 1000), light_and_heavy),
    Case("tight_and_loose", "a 300 ms tenant at 0.3 beside a 3 s one at 3 times capacity", ("tight", "loose"),
         Deadlines(3000, 300), tight_and_loose),
    Case("small_and_big", "small requests at a quarter of capacity beside ten times bigger ones at 4 times; 1 s, 4 s",
         ("small", "big"), Deadlines(4000, 1000), small_and_big),
)  # fmt: skip
