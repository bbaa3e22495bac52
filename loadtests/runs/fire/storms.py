"""A burst, and outages with clients who ask again at once: does the overload end when its cause does?"""

from __future__ import annotations

import asyncio

from loadtests.cluster import meters
from loadtests.cluster.meters import Meter
from loadtests.cluster.stand import Stand, ready
from loadtests.load.client import START_IN_S
from loadtests.load.figures import on_time_between
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Step
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.drill import Drill, Run, Trouble, storming

BASE_LOAD = 0.75
DEADLINE_MS = 1000.0
COUNT_FROM_S = 3.0
END_MARGIN_S = 1.0
LOOK_S = 1.0  # a moving second
STEP_S = 0.1

BURST_FROM_S, BURST_TO_S, BURST_RUN_S = 7.0, 12.0, 20.0
DOWN_FROM_S, DOWN_TO_S, DOWN_RUN_S = 7.0, 11.0, 24.0
BACK_FROM_S = 16.0


async def burst(drill: Drill) -> list[Figure]:
    """75 %, ten times capacity, 75 % again."""
    steps = (
        Step(0, drill.rate(BASE_LOAD)),
        Step(BURST_FROM_S, drill.rate(10)),
        Step(BURST_TO_S, drill.rate(BASE_LOAD)),
    )
    tenant = drill.tenant("a", 0, steps=steps, deadline_ms=DEADLINE_MS)
    run = await drill.run("burst", tenant, seconds=BURST_RUN_S, cooldown_s=END_MARGIN_S)
    before = on_time_between(run.ledger, COUNT_FROM_S, BURST_FROM_S)
    until = BURST_RUN_S - END_MARGIN_S
    back = back_after(run.ledger, BURST_TO_S, until, 0.9 * before)
    return [
        Figure("on time before", before, "%"),
        at_most("back at 90 % of it after", back, DEADLINE_MS / 1000, "s", "one deadline"),
        Figure("on time during the burst", on_time_between(run.ledger, BURST_FROM_S, BURST_TO_S), "%"),
    ]


async def freeze(drill: Drill) -> list[Figure]:
    """Every worker stops, and goes on as if nothing had been."""
    return await _outage(drill, "workers frozen", _frozen)


async def kill(drill: Drill) -> list[Figure]:
    """Every worker dies, and new ones take their places."""
    return await _outage(drill, "workers killed", _killed)


async def _outage(drill: Drill, name: str, trouble: Trouble) -> list[Figure]:
    tenant = drill.tenant(
        "a", BASE_LOAD, deadline_ms=DEADLINE_MS, patience_ms=DEADLINE_MS + 100, retry=storming(3)
    )  # fmt: skip
    run = await drill.run(name, tenant, seconds=DOWN_RUN_S, trouble=trouble, cooldown_s=END_MARGIN_S)
    return _recovered(run)


def _recovered(run: Run) -> list[Figure]:
    until = DOWN_RUN_S - END_MARGIN_S
    before = on_time_between(run.ledger, COUNT_FROM_S, DOWN_FROM_S)
    after = on_time_between(run.ledger, BACK_FROM_S, until)
    back = back_after(run.ledger, DOWN_TO_S, until, 0.97 * before)
    dispatches = run.used.meter.requests / max(1, run.figures.requests)
    return [
        Figure("on time before", before, "%"),
        Figure("on time during", on_time_between(run.ledger, DOWN_FROM_S, DOWN_TO_S), "%"),
        at_least("on time afterwards / before", after / max(before, 1e-9), 0.97, "",
                 f"from {BACK_FROM_S - DOWN_TO_S:g} s after the end of the outage"),
        Figure("back at 97 % of it after", back, "s"),
        at_most("worker dispatches per request", dispatches, 1.1),
        Figure("tries per request", run.figures.all.attempts),
    ]  # fmt: skip


def back_after(ledger: Ledger, from_s: float, until_s: float, level: float) -> float:
    """Seconds from `from_s` until every moving second has a share on time of `level`, up to `until_s`.

    One that never comes back counts to the end.
    """
    starts = [from_s + STEP_S * index for index in range(int((until_s - LOOK_S - from_s) / STEP_S) + 1)]
    good = [on_time_between(ledger, start, start + LOOK_S) >= level for start in starts]
    if not good or not good[-1]:
        return until_s - from_s
    bad = [index for index, is_good in enumerate(good) if not is_good]
    return 0.0 if not bad else starts[bad[-1] + 1] - from_s


async def _frozen(stand: Stand) -> Meter:
    await asyncio.sleep(START_IN_S + DOWN_FROM_S)
    try:
        for worker in stand.workers:
            worker.process.freeze()
        await asyncio.sleep(DOWN_TO_S - DOWN_FROM_S)
    finally:
        for worker in stand.workers:
            worker.process.thaw()
    return Meter()


async def _killed(stand: Stand) -> Meter:
    """Returns what the dead had counted; the new ones count from 0, and are up a little after the outage should end."""
    await asyncio.sleep(START_IN_S + DOWN_FROM_S)
    counted = await meters.read(stand.workers)
    for worker in stand.workers:
        worker.process.kill()
    await asyncio.sleep(DOWN_TO_S - DOWN_FROM_S)
    for worker in stand.workers:
        worker.process.start()
    await asyncio.gather(*(ready(worker) for worker in stand.workers))
    return counted
