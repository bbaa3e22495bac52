"""The cases: each a load, or a few on one stand, and what must hold.

Loads are multiples of the capacity measured on the same stand; times and counts are bounded by the plan of each.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.cluster.stand import Shape
from loadtests.load.figures import Figures, Quantiles, quantiles
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.drill import Drill, Run
from loadtests.runs.fire.storms import burst, freeze, kill

SWEEP = (0.5, 0.9, 2.0, 5.0, 10.0)
SWEEP_S = 14.0
SLO_MS = 1000.0
AFTER_WAITING = ("deadline_expired", "deadline_exceeded")
LIGHT = 0.2  # of capacity: two fifths of its half. Nearer to it, its own bunched arrivals wait for one another
BIG = 10  # times as long as a usual answer


@dataclass(frozen=True)
class Case:
    """A stand's shape, who asks, and what is done."""

    name: str
    about: str
    shape: Shape
    tenants: tuple[str, ...]
    play: Callable[[Drill], Coroutine[Any, Any, list[Figure]]]
    disturbed: bool = False  # workers are hurt on purpose: their waste is no fault of the router's


async def sweep(drill: Drill) -> list[Figure]:
    found: list[Figure] = []
    for load in SWEEP:
        run = await drill.run(f"{load:g}x", drill.tenant("a", load, deadline_ms=SLO_MS), seconds=SWEEP_S)
        found += _under(load, run, drill.goodput(run))
    return found


def _under(load: float, run: Run, goodput: float) -> Iterable[Figure]:
    """What one load of the sweep must show."""
    everyone = run.figures.all
    if load < 1:
        yield Figure(f"answered on time at {load:g}x", everyone.on_time, "%")
        yield Figure(f"answers p95 at {load:g}x", everyone.answers_ms.p95, "ms")
        return
    yield at_least(f"goodput / capacity at {load:g}x", goodput, 0.97)
    yield at_most(f"admitted p95 at {load:g}x", everyone.answers_ms.p95, 400, "ms")
    refusals = everyone.refusals_ms
    yield at_most(f"refusals p50 at {load:g}x", refusals.p50, 5, "ms")
    is_last = load == SWEEP[-1]
    yield Figure(f"refusals p99 at {load:g}x", refusals.p99, "ms", 50 if is_last else None, at_least=False)
    door = at_the_door(run)
    yield Figure(
        f"the same, at the door alone, at {load:g}x", door.p99, "ms", note=f"{door.count:,} of {refusals.count:,}"
    )


def at_the_door(run: Run) -> Quantiles:
    """The refusals of those who were never let in: who waited first is refused after its wait, by its deadline."""
    begin, end = run.plan.window
    return quantiles(
        refusal.after_s
        for refusal in run.ledger.refusals
        if begin <= refusal.at_s < end and refusal.code not in AFTER_WAITING
    )


async def aggressor(drill: Drill) -> list[Figure]:
    run = await drill.run(
        "light 0.3x beside 20x",
        drill.tenant("light", 0.3, deadline_ms=SLO_MS),
        drill.tenant("heavy", 20, deadline_ms=SLO_MS),
        seconds=25,
    )
    light = run.share("light")
    return [
        at_least("light tenant served on time", light.on_time, 0.99, "%", f"of {light.arrivals} requests"),
        Figure("light tenant's p95", light.answers_ms.p95, "ms"),
        Figure("goodput / capacity", drill.goodput(run)),
    ]


async def equal_sizes(drill: Drill) -> list[Figure]:
    light = drill.tenant("light", LIGHT, deadline_ms=SLO_MS)
    alone = await drill.run("light alone", light, seconds=18)
    run = await drill.run("beside 20x", light, drill.tenant("heavy", 20, deadline_ms=SLO_MS), seconds=25)
    found, solo = run.share("light"), alone.share("light").answers_ms.p95
    return [
        at_least("light tenant served on time", found.on_time, 0.99, "%", f"of {found.arrivals} requests"),
        at_most("light tenant's p95 / solo p95", found.answers_ms.p95 / max(solo, 1e-9), 1.3, "",
                f"{found.answers_ms.p95:.0f} ms against {solo:.0f} ms"),
    ]  # fmt: skip


async def bigger_neighbours(drill: Drill) -> list[Figure]:
    light = drill.tenant("light", 0.25, deadline_ms=SLO_MS)
    alone = await drill.run("light alone", light, seconds=18)
    big = drill.tenant("big", 10, size=BIG, deadline_ms=4000)
    run = await drill.run(f"beside 10x of {BIG} times bigger ones", light, big, seconds=25)
    found, solo = run.share("light"), alone.share("light").answers_ms.p95
    service_ms = BIG * drill.capacity.service_ms.p50
    return [
        at_least("light tenant served on time", found.on_time, 0.99, "%", f"of {found.arrivals} requests"),
        at_most("light tenant's p95", found.answers_ms.p95, solo + service_ms, "ms",
                f"solo {solo:.0f} ms and one neighbour's service, {service_ms:.0f} ms"),
    ]  # fmt: skip


async def mixed_deadlines(drill: Drill) -> list[Figure]:
    run = await drill.run(
        "300 ms at 0.3x beside 3 s at 3x",
        drill.tenant("tight", 0.3, deadline_ms=300),
        drill.tenant("loose", 3, deadline_ms=3000),
        seconds=20,
    )
    tight, loose = run.share("tight"), run.share("loose")
    return [
        at_least("tight tenant served on time", tight.on_time, 0.99, "%", f"of {tight.arrivals} requests"),
        Figure("tight tenant's p95", tight.answers_ms.p95, "ms"),
        Figure("loose tenant served on time", loose.on_time, "%"),
        Figure("goodput / capacity", drill.goodput(run)),
    ]


async def short_deadline(drill: Drill) -> list[Figure]:
    run = await drill.run("250 ms at 3x", drill.tenant("a", 3, deadline_ms=250), seconds=SWEEP_S)
    return [
        at_least("goodput / capacity", drill.goodput(run), 0.96),
        Figure("answers p95", run.figures.all.answers_ms.p95, "ms"),
        at_most("refusals p50", run.figures.all.refusals_ms.p50, 5, "ms"),
    ]


WIDE = Shape()
NARROW = Shape(workers=1, slots=4, answer_tokens=10)
SINGLE = Shape(workers=1, slots=8)
LIGHT_AND_HEAVY = ("light", "heavy")

CASES = (
    Case("sweep", "one tenant, SLO 1 s, from half to ten times capacity", WIDE, ("a",), sweep),
    Case("aggressor", "a tenant at 20 times capacity beside one under its share", NARROW, LIGHT_AND_HEAVY, aggressor),
    Case("equal_sizes", "the same, eight slots, against the light tenant alone", SINGLE, LIGHT_AND_HEAVY, equal_sizes),
    Case("bigger_neighbours", "small requests at half their share beside ten times bigger ones at 10 times capacity",
         WIDE, ("light", "big"), bigger_neighbours),
    Case("mixed_deadlines", "300 ms under its share beside 3 s at 3 times capacity", WIDE, ("tight", "loose"),
         mixed_deadlines),
    Case("short_deadline", "everybody wants an answer in 250 ms, at 3 times capacity", WIDE, ("a",), short_deadline),
    Case("burst", "75 % of capacity, 10 times capacity for five seconds, 75 % again", WIDE, ("a",), burst),
    Case("storm_frozen", "75 %, every worker frozen for four seconds, three immediate retries each", WIDE, ("a",),
         freeze, disturbed=True),
    Case("storm_killed", "the same, workers killed and started again", WIDE, ("a",), kill, disturbed=True),
)  # fmt: skip


def honesty(case: Case, runs: Sequence[Run]) -> list[Figure]:
    """What must hold in every case, over all its loads; of shares, the worst load's. Not where workers were hurt."""
    every = [run.figures for run in runs]
    none, little = (None, None) if case.disturbed else (0.0, 0.01)
    wasted = max(run.used.meter.wasted for run in runs)
    miscounted = sum(abs(count) for run in runs for count in run.used.miscounted.values())
    return [
        at_most("answers sent after their deadline", sum(each.late_answers for each in every), 0),
        at_most("invited retries without a hint", sum(each.hintless for each in every), 0),
        Figure("wasted worker time", wasted, "%", little, at_least=False),
        Figure("tries that failed", sum(map(_failures, every)), "", none, at_least=False),
        Figure("tries that router and client count differently", miscounted, "", none, at_least=False),
        *circumstances(runs),
    ]


def circumstances(runs: Sequence[Run]) -> list[Figure]:
    """Whether the figures can be believed: a late client or a busy neighbour spoils them."""
    late = max(run.figures.generator_late for run in runs)
    return [
        at_most("requests that the client itself sent late", late, runs[0].plan.max_late_share, "%"),
        Figure("router's processor time, of one core", max(run.used.cpu.router for run in runs), "%"),
        Figure("other programs' processor time, of the machine", max(run.used.cpu.others for run in runs), "%"),
    ]


def _failures(figures: Figures) -> int:
    """Tries that ended in no answer and no refusal."""
    return sum(count for ending, count in figures.tries.items() if ending.startswith(("failed:", "client_gave_up")))
