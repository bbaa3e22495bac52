"""The loads that both gateways get, and what is read off each. Clients leave at their deadline, as clients do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from loadtests.fire.drill import Drill, Run
from loadtests.fire.figure import Figure, at_least, at_most
from loadtests.fire.stand import Shape
from loadtests.openloop.plan import Tenant
from loadtests.peers.gateways import Deadlines

BIG = 10  # times as long as a usual answer
SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Case:
    """One load. Targets are Weir's; the same figures of the others stand beside them."""

    name: str
    about: str
    tenants: tuple[str, ...]
    deadlines: Deadlines
    play: Callable[[Drill], Coroutine[Any, Any, list[Figure]]]


def leaving(drill: Drill, name: str, load: float, deadline_ms: float, size: int = 1) -> Tenant:
    """A tenant whose clients hang up at their deadline: what `abortonclose` is there for."""
    return drill.tenant(name, load, size=size, deadline_ms=deadline_ms, patience_ms=deadline_ms)


async def ten_times(drill: Drill) -> list[Figure]:
    run = await drill.run("10x, SLO 1 s", leaving(drill, "a", 10, 1000), seconds=14)
    everyone = run.figures.all
    return [
        at_least("goodput / capacity", drill.goodput(run), 0.97),
        Figure("admitted p50", everyone.answers_ms.p50, "ms"),
        at_most("admitted p95", everyone.answers_ms.p95, 400, "ms"),
        at_most("refusals p50", everyone.refusals_ms.p50, 5, "ms"),
        at_least("refusals that say when to come back", hinted(run), 1.0, "%"),
    ]


async def short_deadline(drill: Drill) -> list[Figure]:
    run = await drill.run("250 ms at 3x", leaving(drill, "a", 3, 250), seconds=14)
    return [at_least("goodput / capacity", drill.goodput(run), 0.96)]


async def light_and_heavy(drill: Drill) -> list[Figure]:
    return await _beside(drill, leaving(drill, "light", 0.2, 1000), leaving(drill, "heavy", 4, 1000))


async def tight_and_loose(drill: Drill) -> list[Figure]:
    return await _beside(drill, leaving(drill, "tight", 0.3, 300), leaving(drill, "loose", 3, 3000))


async def small_and_big(drill: Drill) -> list[Figure]:
    return await _beside(drill, leaving(drill, "small", 0.25, 1000), leaving(drill, "big", 4, 4000, BIG))


async def _beside(drill: Drill, under_its_share: Tenant, over_it: Tenant) -> list[Figure]:
    name = under_its_share.name
    run = await drill.run(f"{name} beside {over_it.name}", under_its_share, over_it, seconds=20)
    share = run.share(name)
    return [
        at_least(f"{name} tenant served on time", share.on_time, 0.99, "%"),
        Figure(f"{name} tenant's p95", share.answers_ms.p95, "ms"),
        Figure("goodput / capacity", drill.goodput(run)),
    ]


def hinted(run: Run) -> float:
    """Share of the refusals that say when to come back, of those where coming back could help: a deadline that has
    passed, or that no wait would let it meet, is none."""
    useful = [each for each in run.ledger.refusals if each.should_retry or not each.code.startswith("deadline_")]
    return sum(refusal.hint_ms is not None for refusal in useful) / max(1, len(useful))


CASES = (
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
