"""One scenario, played by one subject: its loads, the failures of its workers, and the figures of the whole run.

Rows of the table are made by `reading`. Shares are of the distinct requests.

    NAME_alone_p95_ms   p95 of the answers of a tenant that was first measured alone, in milliseconds
    on_time_before      share on time before the first trouble: a phase of the load, or a failure of workers
    on_time_during      share on time from the start of the first trouble to the end of the last
    on_time_after       share on time from `settle_s` after the end of the last trouble
    after_over_before   the ratio of the two
    back_after_s        seconds from the end of the last trouble until nine tenths of the share before are kept
    dispatches          requests to workers, for each client request
    attempts            attempts of a client, for each request
    late_answers        answers that were sent after their deadline
    hintless            invited retries without a hint
    wasted              share of the workers' slot time that produced nothing delivered
    failed_tries        attempts that ended without an answer or a refusal
    miscounted          attempts that the router and the client count differently
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

from loadtests.cluster import meters
from loadtests.cluster.meters import Meter
from loadtests.cluster.processes import frozen
from loadtests.cluster.stand import Server, Stand, ready
from loadtests.faults import slow
from loadtests.load.client import START_IN_S
from loadtests.load.figures import Figures, on_time_between
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Tenant
from loadtests.runs.matrix import reading
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Row
from loadtests.runs.matrix.setup import Run, Setup, Trouble
from loadtests.runs.matrix.staging import tenants_of, troubles
from loadtests.scenarios.arrivals import Open
from loadtests.scenarios.model import Failure, Scenario

CALM_S = 1.0
BEFORE_FROM_S, UNTIL_END_S = 1.0, 1.0
"""The interval before a trouble begins so long after the start; the one after it ends so long before the end."""
BACK = 0.9
LOOK_S, STEP_S = 1.0, 0.1
"""The length and the step of the moving window."""
SLOW_WITHIN_S = 5.0


@dataclass
class Played:
    rows: list[Row]
    run: Run
    figures: dict[str, float]


async def play(setup: Setup, case: Case, *, pace: float = 1.0, alone: bool = True) -> Played:
    """Play it on this setup. With `alone`, tenants that the file names are first measured alone."""
    scenario, tenants = case.scenario, tenants_of(case.scenario, setup.capacity)
    figures: dict[str, float] = {}
    for name in scenario.alone if alone else ():
        own = [tenant for tenant in tenants if tenant.name == name or tenant.name.startswith(f"{name}-")]
        run = await _load(setup, scenario, f"{name} alone", own, pace)
        figures[f"{name}_alone_p95_ms"] = max(run.share(tenant.name).answers_ms.p95 for tenant in own)
    run = await _load(setup, scenario, case.name, tenants, pace, trouble(scenario))
    return Played(rows(setup, case, run), run, figures | figures_of(scenario, run))


async def _load(
    setup: Setup, scenario: Scenario, name: str, tenants: list[Tenant] | tuple[Tenant, ...], pace: float,
    trouble: Trouble | None = None,
) -> Run:  # fmt: skip
    return await setup.run(
        name, *tenants, seconds=scenario.duration_s, trouble=trouble, warmup_s=scenario.warm_up_s,
        cooldown_s=scenario.cool_down_s, calm_s=CALM_S * pace,
    )  # fmt: skip


def rows(setup: Setup, case: Case, run: Run) -> list[Row]:
    scenario = case.scenario
    spans = {case.name: None} | {window.name: (window.from_s, window.until_s) for window in scenario.windows}
    return [
        reading.row(
            name, setup, run, peak_load(scenario, *(span or (0.0, scenario.duration_s))), span, scenario.quality
        )
        for name, span in spans.items()
    ]


def peak_load(scenario: Scenario, from_s: float, until_s: float) -> float:
    """The greatest multiple of the capacity that is offered between two seconds."""
    loads = [group.arrivals for group in scenario.tenants if isinstance(group.arrivals, Open)]
    changes = (second for arrivals in loads for second in arrivals.moments if from_s <= second < until_s)
    moments = (from_s, *changes)
    return round(max(sum((each.load or 0.0) * each.times_at(at) for each in loads) for at in moments), 2)


def figures_of(scenario: Scenario, run: Run) -> dict[str, float]:
    found = {
        "dispatches": run.used.meter.requests / max(1, run.figures.requests),
        "attempts": run.figures.all.attempts,
        "late_answers": float(run.figures.late_answers),
        "hintless": float(run.figures.hintless),
        "wasted": run.used.meter.wasted,
        "failed_tries": float(failed_tries(run.figures)),
        "miscounted": float(sum(abs(count) for count in run.used.miscounted.values())),
    }
    spans = troubles(scenario)
    if spans:
        begins, ends = min(begin for begin, _ in spans), max(end for _, end in spans)
        until = scenario.duration_s - UNTIL_END_S
        before = on_time_between(run.ledger, BEFORE_FROM_S, begins)
        after = on_time_between(run.ledger, min(ends + scenario.settle_s, until), until)
        found |= {
            "on_time_before": before,
            "on_time_during": on_time_between(run.ledger, begins, ends),
            "on_time_after": after,
            "after_over_before": after / max(before, 1e-9),
            "back_after_s": back_after(run.ledger, ends, until, BACK * before),
        }
    return found


def failed_tries(figures: Figures) -> int:
    return sum(count for ending, count in figures.tries.items() if ending.startswith(("failed:", "client_gave_up")))


def back_after(ledger: Ledger, from_s: float, until_s: float, level: float) -> float:
    """Seconds from `from_s` until every moving window has a share on time of `level`; all of them if it never does."""
    starts = [from_s + STEP_S * index for index in range(int((until_s - LOOK_S - from_s) / STEP_S) + 1)]
    good = [on_time_between(ledger, start, start + LOOK_S) >= level for start in starts]
    if not good or not good[-1]:
        return until_s - from_s
    bad = [index for index, is_good in enumerate(good) if not is_good]
    return 0.0 if not bad else starts[bad[-1] + 1] - from_s


# ---- failures of workers


def trouble(scenario: Scenario) -> Trouble | None:
    """All failures of the file as one coroutine function; None without failures."""
    failures = [failure for group in scenario.workers for failure in group.failures]
    if not failures:
        return None

    async def all_of_them(stand: Stand) -> Meter:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_fail(stand, failure)) for failure in failures]
        return sum((task.result() for task in tasks), Meter())

    return all_of_them


async def _fail(stand: Stand, failure: Failure) -> Meter:
    """Inject one failure. Returns the counters of workers that were killed."""
    workers = stand.workers[: failure.workers]
    lasts_s = failure.until_s - failure.from_s
    await asyncio.sleep(START_IN_S + failure.from_s)
    if failure.kind == "slow":
        await asyncio.to_thread(make_slow, workers, failure.factor, lasts_s)
        return Meter()
    return await (_frozen if failure.kind == "frozen" else _killed)(workers, lasts_s)


def make_slow(workers: list[Server], factor: float, for_s: float) -> None:
    """Make their steps `factor` times as long for `for_s` seconds. Raises OSError if a worker does not accept it."""
    for worker in workers:
        slow.put(worker.metrics_url.removesuffix("/metrics"), factor, for_s, within_s=SLOW_WITHIN_S)


async def _frozen(workers: list[Server], lasts_s: float) -> Meter:
    with ExitStack() as freezing:
        for worker in workers:
            freezing.enter_context(frozen(worker.process.pid))
        await asyncio.sleep(lasts_s)
    return Meter()


async def _killed(workers: list[Server], lasts_s: float) -> Meter:
    counted = await meters.read(workers)
    for worker in workers:
        worker.process.kill()
    await asyncio.sleep(lasts_s)
    for worker in workers:
        worker.process.start()
    await asyncio.gather(*(ready(worker) for worker in workers))
    return counted
