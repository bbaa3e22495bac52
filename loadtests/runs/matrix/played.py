"""One scenario on real processes: its loads one after another, what is done to the workers, and what is read off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from loadtests.cluster import meters
from loadtests.cluster.meters import Meter
from loadtests.cluster.stand import Server, Stand, ready
from loadtests.load.client import START_IN_S
from loadtests.load.figures import on_time_between
from loadtests.load.plan import Tenant
from loadtests.runs.drill import Drill, Run, Trouble
from loadtests.runs.fire.storms import back_after
from loadtests.runs.matrix import reading
from loadtests.runs.matrix.cell import Row
from loadtests.runs.matrix.staging import names_of, tenants_of, troubles
from loadtests.runs.matrix.trouble import put
from loadtests.scenarios.model import Failure, Scenario

CALM_S = 1.0
FROM_S = 1.0
"""What counts as before a trouble begins so long after the start, and what counts as after it ends so long before the
end."""
AFTER_S = 3.0
"""The share on time afterwards is that from so long after the trouble."""
BACK = 0.9
"""All is well again when so much of the share before is reached, and kept."""


@dataclass
class Played:
    """What came of it: rows of the table, the last run, and figures that have a name of their own."""

    rows: list[Row] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    run: Run | None = None


async def play(drill: Drill, scenario: Scenario, *, name: str, pace: float = 1.0, alone: bool = True) -> Played:
    """Play it on the drill's stand. `alone`: tenants that the file wants measured alone are, first."""
    made, tenants = Played(), tenants_of(scenario, drill.capacity)
    if alone:
        for who in scenario.alone:
            own = [tenant for tenant in tenants if tenant.name == who or tenant.name.startswith(f"{who}-")]
            run = await _load(drill, scenario, f"{who} alone", own, pace)
            made.figures[f"{who}_alone_p95_ms"] = max(run.share(tenant.name).answers_ms.p95 for tenant in own)
    made.run = await _load(drill, scenario, name, tenants, pace, _trouble(scenario))
    made.rows = _rows(drill, scenario, made.run, name)
    made.figures |= _figures(scenario, made.run)
    return made


async def _load(
    drill: Drill, scenario: Scenario, name: str, tenants: list[Tenant] | tuple[Tenant, ...], pace: float,
    trouble: Trouble | None = None,
) -> Run:  # fmt: skip
    return await drill.run(
        name, *tenants, seconds=scenario.duration_s, trouble=trouble, warmup_s=scenario.warm_up_s,
        cooldown_s=scenario.cool_down_s, calm_s=CALM_S * pace,
    )  # fmt: skip


def _rows(drill: Drill, scenario: Scenario, run: Run, name: str) -> list[Row]:
    """Of the whole, and of each window."""
    rows = [reading.row(name, drill, run, _most_load(scenario, 0.0, scenario.duration_s))]
    for window in scenario.windows:
        load = _most_load(scenario, window.from_s, window.until_s)
        rows.append(reading.row(window.name, drill, run, load, (window.from_s, window.until_s)))
    return rows


def _most_load(scenario: Scenario, from_s: float, until_s: float) -> float:
    """The greatest multiple of capacity that is asked for between two seconds."""
    moments = [from_s]
    for group in scenario.tenants:
        moments += [phase.from_s for phase in getattr(group.arrivals, "phases", ()) if from_s <= phase.from_s < until_s]
    return max(sum(_load_at(group.arrivals, moment) for group in scenario.tenants) for moment in moments)


def _load_at(arrivals: object, moment: float) -> float:
    load = float(getattr(arrivals, "load", None) or 0.0)
    for phase in getattr(arrivals, "phases", ()):
        if phase.from_s <= moment < phase.until_s:
            return load * float(phase.times)
    return load


def _figures(scenario: Scenario, run: Run) -> dict[str, float]:
    found = {
        "dispatches": run.used.meter.requests / max(1, run.figures.requests),
        "attempts": run.figures.all.attempts,
        "late_answers": float(run.figures.late_answers),
        "hintless": float(run.figures.hintless),
    }
    spans = troubles(scenario)
    if spans:
        begins, ends = min(begin for begin, _ in spans), max(end for _, end in spans)
        until = scenario.duration_s - FROM_S
        before = on_time_between(run.ledger, FROM_S, begins)
        found |= {
            "on_time_before": before,
            "on_time_during": on_time_between(run.ledger, begins, ends),
            "on_time_after": on_time_between(run.ledger, min(ends + AFTER_S, until), until),
            "back_after_s": back_after(run.ledger, ends, until, BACK * before),
        }
    return found


def _trouble(scenario: Scenario) -> Trouble | None:
    """What the file does to workers, all of it in one task."""
    failures = [failure for group in scenario.workers for failure in group.failures]
    if not failures:
        return None

    async def trouble(stand: Stand) -> Meter:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_fail(stand, failure)) for failure in failures]
        return sum((task.result() for task in tasks), Meter())

    return trouble


async def _fail(stand: Stand, failure: Failure) -> Meter:
    """One failure. Returns what workers had counted that are gone."""
    workers = stand.workers[: failure.workers]
    lasts_s = failure.until_s - failure.from_s
    await asyncio.sleep(START_IN_S + failure.from_s)
    if failure.kind == "slow":
        await asyncio.to_thread(put, workers, failure.factor, lasts_s)
        return Meter()
    return await (_frozen if failure.kind == "frozen" else _killed)(workers, lasts_s)


async def _frozen(workers: list[Server], lasts_s: float) -> Meter:
    """Every one stops, and goes on as if nothing had been."""
    try:
        for worker in workers:
            worker.process.freeze()
        await asyncio.sleep(lasts_s)
    finally:
        for worker in workers:
            worker.process.thaw()
    return Meter()


async def _killed(workers: list[Server], lasts_s: float) -> Meter:
    """Every one dies, and another takes its place; the new ones count from 0."""
    counted = await meters.read(workers)
    for worker in workers:
        worker.process.kill()
    await asyncio.sleep(lasts_s)
    for worker in workers:
        worker.process.start()
    await asyncio.gather(*(ready(worker) for worker in workers))
    return counted


def tenants_file(scenarios: list[Scenario]) -> dict[str, bool]:
    """Every tenant of these, and whether answers to it may be cut."""
    return {
        name: group.may_clamp or bool(group.max_level)
        for scenario in scenarios
        for group in scenario.tenants
        for name in names_of(scenario)
        if name == group.name or name.startswith(f"{group.name}-")
    }
