"""What each plot shows, as plain numbers: which curves, which question, which units. plots.py draws them.

A sweep is drawn over its loads; a single load over time. What would be empty is left out, so a scenario gets the
plots that its question needs and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from loadtests.scenarios.arrivals import Closed, Trace
from loadtests.scenarios.model import Scenario
from loadtests.simulator.charts import Band, Bar, Bars, Chart, Curve, Level, Panel, Panels
from loadtests.simulator.columns import seconds
from loadtests.simulator.readings import gap_s, members
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.results import Cell, Comparison, Figure

LEAST_LOADS_FOR_A_CURVE = 3
MOST_PANELS = 3
SMOOTHED_BUCKETS = 3
TIMES_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def charts(comparison: Comparison) -> Iterator[Chart | Panels | Bars]:
    """The plots that this comparison is good for."""
    if len(comparison.loads) >= LEAST_LOADS_FOR_A_CURVE:
        yield from over_load(comparison)
    else:
        yield from over_time(comparison)
    yield waste(comparison)


# ---- over load


def over_load(comparison: Comparison) -> Iterator[Chart]:
    sweep = comparison.scenario.sweep
    if sweep and sweep.tenants and len(sweep.tenants) < len(comparison.scenario.tenants):
        yield from _beside_the_swept(comparison, sweep.tenants)
        return
    yield _goodput(comparison)
    yield _waits(comparison)


def _goodput(comparison: Comparison) -> Chart:
    loads = _loads(comparison)
    edges = tuple(sorted({*loads, 1.0}))
    return Chart(
        name="goodput",
        question="How much is still answered in time when more is asked than can be done?",
        note=_note(comparison),
        x_label="offered load, multiples of capacity",
        y_label="work answered on time, share of capacity",
        curves=_by_load(comparison, lambda report: report.goodput_cost_to_capacity),
        ideal=Curve("ideal", edges, tuple(min(1.0, load) for load in edges)),
        loads=loads,
    )


def _waits(comparison: Comparison) -> Chart:
    deadline = _deadline(comparison.scenario)
    curves = _by_load(comparison, lambda report: report.wait_s.p95)
    return Chart(
        name="wait",
        question="How long do those wait who are let in?",
        note=_note(comparison),
        x_label="offered load, multiples of capacity",
        y_label="wait before the start, p95",
        curves=curves,
        levels=_deadline_level(deadline),
        loads=_loads(comparison),
        times=_times(curves, deadline),
    )


def _beside_the_swept(comparison: Comparison, swept: Sequence[str]) -> Iterator[Chart]:
    """One group asks for more and more: what do the others notice?"""
    scenario = comparison.scenario
    others = [group for group in scenario.tenants if group.name not in swept]
    names, hungry = " and ".join(group.name for group in others), " and ".join(swept)

    def quiet_share(report: PolicyReport) -> float | None:
        found = [each.ledger for group in others for each in members(report, group)]
        distinct = sum(ledger.distinct for ledger in found)
        return sum(ledger.on_time for ledger in found) / distinct if distinct else None

    def quiet_p95(report: PolicyReport) -> float | None:
        found = [each.latency_s.p95 for group in others for each in members(report, group)]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None

    latencies = _by_load(comparison, quiet_p95)
    base = Chart(
        name="neighbours-on-time",
        question="Who pays when one tenant asks for more and more?",
        note=f"Answers on time to: {names}. {_note(comparison)}",
        x_label=f"load offered by: {hungry}, multiples of capacity",
        y_label="on time, share of those asked",
        curves=_by_load(comparison, quiet_share),
        loads=_loads(comparison),
    )
    yield base
    yield replace(
        base,
        name="neighbours-latency",
        question="How much slower does it get beside a tenant who asks for more and more?",
        note=f"Latency of: {names}. {_note(comparison)}",
        y_label="latency of answers, p95",
        curves=latencies,
        times=_times(latencies, None),
    )


def _by_load(comparison: Comparison, read: Figure) -> tuple[Curve, ...]:
    return tuple(
        Curve(policy, _loads(comparison), tuple(cell.mean(read) for cell in comparison.of(policy)))
        for policy in comparison.policies
    )


def _loads(comparison: Comparison) -> tuple[float, ...]:
    return tuple(load for load in comparison.loads if load is not None)


# ---- over time


def over_time(comparison: Comparison) -> Iterator[Chart | Panels]:
    yield _recovery(comparison)
    if chart := _latency(comparison):
        yield chart
    if panels := service(comparison):
        yield panels


def _recovery(comparison: Comparison) -> Chart:
    cells = comparison.at(comparison.loads[-1])
    bands = events(comparison.scenario)
    return Chart(
        name="recovery" if bands else "on-time",
        question=f"How soon is all well again after {bands[-1].trouble}?"
        if bands
        else "Are the answers on time, all the time?",
        note=_note(comparison),
        x_label="time, seconds",
        y_label=f"answers on time per second{_smoothing(cells)}",
        curves=tuple(_rate(cell, bands) for cell in cells),
        bands=bands,
        levels=(Level(_capacity(cells), "capacity"),),
    )


def _rate(cell: Cell, bands: Sequence[Band]) -> Curve:
    bucket_s = cell.reports[0].series.bucket_s
    rates = [(value or 0.0) / bucket_s for value in cell.series(lambda result: result.report.series.on_time)]
    edges = {round(edge / bucket_s) for band in bands for edge in (band.start, band.end)}
    return Curve(cell.policy, _middles(len(rates), bucket_s), smoothed(rates, sorted(edges)))


def _latency(comparison: Comparison) -> Chart | None:
    cells = comparison.at(comparison.loads[-1])
    curves = tuple(_latencies(cell) for cell in cells)
    if not any(value is not None for curve in curves for value in curve.ys):
        return None
    deadline = _deadline(comparison.scenario)
    return Chart(
        name="latency",
        question="How long does an answer take for those who are let in?",
        note=_note(comparison),
        x_label="time, seconds",
        y_label="latency of answers, p95",
        curves=curves,
        bands=events(comparison.scenario),
        levels=_deadline_level(deadline),
        times=_times(curves, deadline),
    )


def _latencies(cell: Cell) -> Curve:
    values = cell.series(lambda result: result.latency_p95_s)
    return Curve(cell.policy, _middles(len(values), cell.reports[0].series.bucket_s), tuple(values))


def service(comparison: Comparison) -> Panels | None:
    """What each tenant has received so far, in seconds of all workers; fair is the straight line."""
    cells = comparison.at(comparison.loads[-1])
    names = list(cells[0].reports[0].series.per_tenant_served_cost)
    if len(names) < 2 or len(names) < comparison.scenario.tenant_count:
        return None
    if len(comparison.scenario.tenants) == 1 and not isinstance(comparison.scenario.tenants[0].arrivals, Trace):
        return None  # all alike: the lines would lie on one another
    chosen = _most_telling(cells)
    panels = tuple(Panel(cell.policy, _received(cell), _gap(cell)) for cell in chosen)
    return Panels(
        name="service",
        question="Does every tenant get its share?",
        note=f"Service received so far, for each tenant, in seconds of all workers. {_note(comparison)}",
        x_label="time, seconds",
        y_label="service received, seconds",
        panels=panels,
    )


def _most_telling(cells: Sequence[Cell]) -> list[Cell]:
    """Weir first, then those with the smallest and the largest gap among the others."""
    ours = [cell for cell in cells if cell.policy.startswith("weir")][:1]
    others = [cell for cell in cells if not cell.policy.startswith("weir")]
    others.sort(key=lambda cell: cell.mean(gap_s) or 0.0)
    picked = others if len(others) < MOST_PANELS else [others[0], others[-1]]
    return [*ours, *picked][:MOST_PANELS]


def _received(cell: Cell) -> tuple[Curve, ...]:
    report = cell.reports[0]
    curves = []
    for tenant, costs in report.series.per_tenant_served_cost.items():
        total, sums = 0.0, [0.0]
        for cost in costs:
            total += cost / report.capacity.cost_per_s
            sums.append(total)
        curves.append(Curve(tenant, tuple(i * report.series.bucket_s for i in range(len(sums))), tuple(sums)))
    return tuple(curves)


def _gap(cell: Cell) -> str:
    gap = cell.mean(gap_s)
    return f"largest gap {seconds(gap)}" if gap is not None else ""


# ---- waste


def waste(comparison: Comparison) -> Bars:
    """Of the highest load."""
    cells = comparison.at(comparison.loads[-1])
    return Bars(
        name="waste",
        question="How much work is done for nobody?",
        note=_note(comparison),
        x_label="share of the workers' time",
        bars=tuple(_bar(cell) for cell in cells),
    )


def _bar(cell: Cell) -> Bar:
    def part(read: Figure) -> float:
        return cell.mean(read) or 0.0

    available = part(lambda report: report.work.available_s) or 1.0
    useful = part(lambda report: report.work.useful_s) / available
    return Bar(cell.policy, useful, part(lambda report: report.work.busy_s) / available - useful)


# ---- what they share


def events(scenario: Scenario) -> tuple[Band, ...]:
    """Phases and failures, each told in a word or two; the same stretch once."""
    bands = [
        *(
            Band(
                phase.from_s, min(phase.until_s, scenario.duration_s), f"{phase.times * load:.3g}x capacity", "a burst"
            )
            for group in scenario.tenants[:1]
            if not isinstance(group.arrivals, Trace | Closed)
            for load in [group.arrivals.load or 0.0]
            for phase in group.arrivals.phases
        ),
        *(
            Band(failure.from_s, min(failure.until_s, scenario.duration_s), *_failure(failure.kind, failure.workers))
            for workers in scenario.workers
            for failure in workers.failures
        ),
    ]
    return tuple(dict.fromkeys(band for band in bands if band.start < scenario.duration_s))


def _failure(kind: str, workers: int | None) -> tuple[str, str]:
    who = "all workers" if workers is None else "one worker" if workers == 1 else f"{workers} workers"
    return f"{who} {kind}", "an outage" if kind == "down" else "a slow spell"


def smoothed(values: Sequence[float], edges: Sequence[int] = (), over: int = SMOOTHED_BUCKETS) -> tuple[float, ...]:
    """A centred mean, so that chance does not hide the shape; never across an edge, so that a step stays one."""
    half, bounds = over // 2, [0, *(edge for edge in edges if 0 < edge < len(values)), len(values)]
    return tuple(
        fmean(values[max(first, i - half) : min(last, i + half + 1)])
        for first, last in pairwise(bounds)
        for i in range(first, last)
    )


def _smoothing(cells: Sequence[Cell]) -> str:
    over_s = SMOOTHED_BUCKETS * cells[0].reports[0].series.bucket_s
    return f" (mean of {over_s:g} s)"


def _middles(count: int, bucket_s: float) -> tuple[float, ...]:
    return tuple((i + 0.5) * bucket_s for i in range(count))


def _capacity(cells: Sequence[Cell]) -> float:
    return cells[0].mean(lambda report: report.capacity.requests_per_s) or 0.0


def _deadline(scenario: Scenario) -> float | None:
    """The deadline, where all tenants have the same constant one."""
    values = {getattr(group.deadline_s, "value", None) for group in scenario.tenants}
    only = values.pop() if len(values) == 1 else None
    return float(only) if only else None


def _deadline_level(deadline: float | None) -> tuple[Level, ...]:
    return (Level(deadline, f"deadline, {deadline:g} s"),) if deadline else ()


def _times(curves: Sequence[Curve], deadline: float | None) -> tuple[float, ...]:
    """Ticks around what there is to show."""
    shown = [value for curve in curves for value in curve.ys if value]
    shown += [deadline] if deadline else []
    if not shown:
        return TIMES_S[:5]
    low = max((tick for tick in TIMES_S if tick <= min(shown)), default=TIMES_S[0])
    high = min((tick for tick in TIMES_S if tick >= max(shown)), default=TIMES_S[-1])
    return tuple(tick for tick in TIMES_S if low <= tick <= high)


def _note(comparison: Comparison) -> str:
    scenario, seeds = comparison.scenario, comparison.seeds
    slots = f"{scenario.slots} slots"
    return (
        f"{comparison.name}: {slots}, virtual time, {f'{len(seeds)} seeds' if len(seeds) > 1 else f'seed {seeds[0]}'}"
    )
