"""The loads of the scenarios, and what is read off each.

Loads are multiples of the capacity that was measured at the workers just before. Clients wait a quarter of a second
longer than their deadline, and then leave. `pace` shortens everything for a test of the machinery.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

from loadtests.load.figures import on_time_between
from loadtests.load.plan import Size, Step, Tenant
from loadtests.runs.drill import Drill, Run, Trouble, storming
from loadtests.runs.fire.storms import back_after
from loadtests.runs.matrix import reading
from loadtests.runs.matrix.cell import Row
from loadtests.runs.matrix.trouble import STANDSTILL, slow

EQUALS = ("anna", "ben", "chloe")
CUTTABLE = ("dora", "emil", "flora")
DEADLINE_MS = 1000.0
LEAVES_AFTER_MS = 250.0
BASE = 0.75
CALM_S = 1.0
MARGIN_S = 3.0  # what counts begins so long after the start, and ends so long before the end


@dataclass
class Stage:
    """What a scenario is played on. `pace`: 1, or less for a test."""

    drill: Drill
    is_weir: bool = True
    pace: float = 1.0
    run: Run | None = None
    figures: dict[str, float] = field(default_factory=dict)

    def s(self, seconds: float) -> float:
        """Seconds of the scenario, in seconds of the clock."""
        return seconds * self.pace

    def tenant(self, name: str, load: float, deadline_ms: float = DEADLINE_MS, size: int = 1, **more: Any) -> Tenant:
        return self.drill.tenant(
            name, load, size=size, deadline_ms=deadline_ms, patience_ms=deadline_ms + LEAVES_AFTER_MS, **more
        )

    def stepping(self, name: str, share: float, steps: Sequence[tuple[float, float]], **more: Any) -> Tenant:
        """A tenant with a share of a load that changes: (from second, times capacity)."""
        rates = tuple(Step(self.s(at_s), share * self.drill.rate(load)) for at_s, load in steps)
        return self.tenant(name, 0, steps=rates, **more)

    async def load(self, name: str, *tenants: Tenant, seconds: float, trouble: Trouble | None = None) -> Run:
        """Run it."""
        margin_s = self.s(MARGIN_S)
        self.run = await self.drill.run(
            name, *tenants, seconds=self.s(seconds), trouble=trouble,
            warmup_s=margin_s, cooldown_s=margin_s, calm_s=self.s(CALM_S),
        )  # fmt: skip
        return self.run

    def row(self, name: str, load: float, window_s: tuple[float, float] | None = None) -> Row:
        """A line of the table, of the load that has just been run."""
        if self.run is None:
            raise RuntimeError("nothing has been run")
        window = window_s and (self.s(window_s[0]), self.s(window_s[1]))
        return reading.row(name, self.drill, self.run, load, window)


Play = Callable[[Stage], Coroutine[Any, Any, list[Row]]]


def steady(name: str, load: float) -> Play:
    """Three equal tenants that ask for so much together."""

    async def play(stage: Stage) -> list[Row]:
        tenants = [stage.tenant(each, load / len(EQUALS)) for each in EQUALS]
        await stage.load(name, *tenants, seconds=STEADY_S)
        return [stage.row(name, load)]

    return play


STEADY_S = 12.0
BURST_FROM_S, BURST_TO_S, BURST_S = 4.0, 24.0, 30.0
BURST = 10.0


async def burst(stage: Stage) -> list[Row]:
    steps = ((0, BASE), (BURST_FROM_S, BURST), (BURST_TO_S, BASE))
    tenants = [stage.stepping(each, 1 / len(EQUALS), steps) for each in EQUALS]
    run = await stage.load("burst", *tenants, seconds=BURST_S)
    before = on_time_between(run.ledger, stage.s(1), stage.s(BURST_FROM_S))
    stage.figures["back_after_s"] = back_after(
        run.ledger, stage.s(BURST_TO_S), stage.s(BURST_S) - stage.s(1), 0.9 * before
    )
    return [
        stage.row("burst", BURST),
        stage.row("overload_10x", BURST, (BURST_FROM_S + MARGIN_S, BURST_TO_S - MARGIN_S)),
    ]


LIGHT, LIGHT_SIZE, AGGRESSOR, NEIGHBOUR_S = 0.2, 5, 50.0, 20.0


async def noisy_neighbour(stage: Stage) -> list[Row]:
    """Answers of 400 ms, so that fifty times the capacity is a rate that the client can send.

    Alone it is measured through Weir only: there it makes no difference who stands before the workers.
    """
    light = stage.tenant("light", LIGHT, 2 * DEADLINE_MS, LIGHT_SIZE)
    if stage.is_weir:
        alone = await stage.load("light alone", light, seconds=NEIGHBOUR_S)
        stage.figures["solo_p95_ms"] = alone.share("light").answers_ms.p95
    heavy = stage.tenant("heavy", AGGRESSOR, 2 * DEADLINE_MS, LIGHT_SIZE)
    run = await stage.load("noisy_neighbour", light, heavy, seconds=NEIGHBOUR_S)
    stage.figures["beside_p95_ms"] = run.share("light").answers_ms.p95
    return [stage.row("noisy_neighbour", LIGHT + AGGRESSOR)]


SLOW_FROM_S, SLOW_TO_S, SLOW_S, SLOW_FACTOR, SLOW_LOAD = 4.0, 11.0, 15.0, 8.0, 0.5


async def slow_worker(stage: Stage) -> list[Row]:
    tenants = [stage.tenant(each, SLOW_LOAD / len(EQUALS)) for each in EQUALS]
    trouble = slow(SLOW_FACTOR, stage.s(SLOW_FROM_S), stage.s(SLOW_TO_S), slice(1, None))
    await stage.load("slow_worker", *tenants, seconds=SLOW_S, trouble=trouble)
    return [stage.row("slow_worker", SLOW_LOAD)]


DOWN_FROM_S, DOWN_TO_S, STORM_S, LOOK_AFTER_S = 4.0, 24.0, 34.0, 3.0


async def retry_storm(stage: Stage) -> list[Row]:
    tenants = [stage.tenant(each, BASE / len(EQUALS), retry=storming(3)) for each in EQUALS]
    trouble = slow(STANDSTILL, stage.s(DOWN_FROM_S), stage.s(DOWN_TO_S))
    run = await stage.load("retry_storm", *tenants, seconds=STORM_S, trouble=trouble)
    _recovered(stage, run, DOWN_FROM_S, DOWN_TO_S, STORM_S)
    stage.figures["dispatches"] = run.used.meter.requests / max(1, run.figures.requests)
    stage.figures["tries"] = run.figures.all.attempts
    return [stage.row("retry_storm", BASE)]


HALT_FROM_S, HALT_TO_S, HALT_S = 4.0, 8.0, 15.0


async def recovery(stage: Stage) -> list[Row]:
    tenants = [stage.tenant(each, BASE / len(EQUALS)) for each in EQUALS]
    trouble = slow(STANDSTILL, stage.s(HALT_FROM_S), stage.s(HALT_TO_S))
    run = await stage.load("recovery", *tenants, seconds=HALT_S, trouble=trouble)
    _recovered(stage, run, HALT_FROM_S, HALT_TO_S, HALT_S)
    return [stage.row("recovery", BASE)]


def _recovered(stage: Stage, run: Run, from_s: float, to_s: float, end_s: float) -> None:
    until_s = stage.s(end_s - 1)
    before = on_time_between(run.ledger, stage.s(1), stage.s(from_s))
    after = on_time_between(run.ledger, stage.s(to_s + LOOK_AFTER_S), until_s)
    stage.figures |= {
        "on_time_before": before,
        "on_time_after": after,
        "back_after_s": back_after(run.ledger, stage.s(to_s), until_s, 0.9 * before),
    }


LONG, DEGRADE_LOAD, DEGRADE_S = 4, 3.0, 13.0


async def degradation(stage: Stage) -> list[Row]:
    tenants = [stage.tenant(each, DEGRADE_LOAD / len(CUTTABLE), 2 * DEADLINE_MS, LONG) for each in CUTTABLE]
    await stage.load("degradation", *tenants, seconds=DEGRADE_S)
    return [stage.row("degradation", DEGRADE_LOAD)]


TIGHT_MS, LOOSE_MS, MIXED_S = 300.0, 3000.0, 13.0


async def mixed_deadlines(stage: Stage) -> list[Row]:
    tight, loose = stage.tenant("tight", 0.3, TIGHT_MS), stage.tenant("loose", 3, LOOSE_MS)
    await stage.load("mixed_deadlines", tight, loose, seconds=MIXED_S)
    return [stage.row("mixed_deadlines", 3.3)]


BIG, SIZES_S = 5, 13.0


async def mixed_sizes(stage: Stage) -> list[Row]:
    small, big = stage.tenant("small", 3), stage.tenant("big", 1, 2 * DEADLINE_MS, BIG)
    await stage.load("mixed_sizes", small, big, seconds=SIZES_S)
    return [stage.row("mixed_sizes", 4)]


MEAN_LOAD, CV, BURSTY_S = 0.8, 4.0, 16.0


async def bursty(stage: Stage) -> list[Row]:
    """Lengths near an exponential distribution with the usual mean: its median is ln 2 of that."""
    usual = stage.drill.shape.answer_tokens
    lengths = Size(max(1.0, usual * log(2)), most=10 * usual, law="exponential")
    tenants = [
        replace(stage.tenant(each, MEAN_LOAD / len(EQUALS), arrivals="gamma", cv=CV), answer_tokens=lengths)
        for each in EQUALS
    ]
    await stage.load("bursty", *tenants, seconds=BURSTY_S)
    return [stage.row("bursty", MEAN_LOAD)]
