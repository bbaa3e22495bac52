"""The data of each plot: curves, titles, units. plots.py draws them.

A sweep is drawn over its loads, a single load over time. Empty plots are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any

from loadtests.scenarios.arrivals import Closed, Trace
from loadtests.scenarios.model import Scenario
from loadtests.simulator.columns import seconds
from loadtests.simulator.plots import Band, Bar, Bars, Chart, Curve, Level, Panel, Panels, Shape
from loadtests.simulator.readings import READ, Read, gap_s, mean_known, members, share_on_time
from loadtests.simulator.report import PolicyReport, TenantReport
from loadtests.simulator.results import Cell, Comparison

MIN_LOADS_FOR_A_CURVE = 3
MAX_PANELS = 3
SMOOTHED_BUCKETS = 3
TIMES_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def charts(comparison: Comparison) -> Iterator[Shape]:
    if len(comparison.loads) >= MIN_LOADS_FOR_A_CURVE:
        yield from over_load(comparison)
    else:
        yield from over_time(comparison)
    yield waste(comparison)


# ---- over load


def over_load(comparison: Comparison) -> Iterator[Chart]:
    """Goodput and wait; where only some tenants are swept, on-time share and latency of the others."""
    sweep = comparison.scenario.sweep
    if sweep and sweep.tenants and len(sweep.tenants) < len(comparison.scenario.tenants):
        yield from _beside_the_swept(comparison, sweep.tenants)
        return
    edges = tuple(sorted({*_loads(comparison), 1.0}))
    yield by_load(
        comparison,
        "goodput",
        "How much is still answered in time when more is asked than can be done?",
        "work answered on time, share of capacity",
        READ["goodput"],
        ideal=Curve("ideal", edges, tuple(min(1.0, load) for load in edges)),
    )
    yield by_load(
        comparison,
        "wait",
        "How long do those wait who are let in?",
        "wait before the start, p95",
        READ["wait_p95_s"],
        levels=_deadline(comparison.scenario),
        timed=True,
    )


def by_load(
    comparison: Comparison, name: str, question: str, y_label: str, read: Read, *, timed: bool = False, **more: Any
) -> Chart:
    """A curve of this figure for each policy. `timed`: seconds, on a logarithmic axis."""
    loads = _loads(comparison)
    curves = tuple(
        Curve(policy, loads, tuple(cell.mean(read) for cell in comparison.of(policy))) for policy in comparison.policies
    )
    shown: dict[str, Any] = {"note": _note(comparison), "x_label": "offered load, multiples of capacity"} | more
    times = _times(curves, shown.get("levels", ())) if timed else ()
    return Chart(name, question, y_label=y_label, curves=curves, loads=loads, times=times, **shown)


def _beside_the_swept(comparison: Comparison, swept: Sequence[str]) -> Iterator[Chart]:
    others = [group for group in comparison.scenario.tenants if group.name not in swept]
    names = " and ".join(group.name for group in others)
    x_label = f"load offered by: {' and '.join(swept)}, multiples of capacity"

    def quiet(report: PolicyReport) -> list[TenantReport]:
        return [each for group in others for each in members(report, group)]

    yield by_load(
        comparison,
        "neighbours-on-time",
        "Who pays when one tenant asks for more and more?",
        "on time, share of those asked",
        lambda report: share_on_time(quiet(report)),
        note=f"Answers on time to: {names}. {_note(comparison)}",
        x_label=x_label,
    )
    yield by_load(
        comparison,
        "neighbours-latency",
        "How much slower does it get beside a tenant who asks for more and more?",
        "latency of answers, p95",
        lambda report: mean_known(each.latency_s.p95 for each in quiet(report)),
        note=f"Latency of: {names}. {_note(comparison)}",
        x_label=x_label,
        timed=True,
    )


def _loads(comparison: Comparison) -> tuple[float, ...]:
    return tuple(load for load in comparison.loads if load is not None)


# ---- over time


def over_time(comparison: Comparison) -> Iterator[Chart | Panels]:
    """The rate of answers on time, latency, and the service of each tenant."""
    yield _recovery(comparison)
    cells = comparison.at(comparison.loads[-1])
    latencies = tuple(over_buckets(cell, cell.series(lambda series: series.latency_p95_s)) for cell in cells)
    if any(value is not None for curve in latencies for value in curve.ys):
        yield Chart(
            name="latency",
            question="How long does an answer take for those who are let in?",
            note=_note(comparison),
            x_label="time, seconds",
            y_label="latency of answers, p95",
            curves=latencies,
            bands=events(comparison.scenario),
            levels=_deadline(comparison.scenario),
            times=_times(latencies, _deadline(comparison.scenario)),
        )
    if panels := service(comparison):
        yield panels


def _recovery(comparison: Comparison) -> Chart:
    cells, bands = comparison.at(comparison.loads[-1]), events(comparison.scenario)
    after = f"How soon is all well again after {bands[-1].trouble}?" if bands else ""
    capacity = cells[0].mean(lambda report: report.capacity.requests_per_s) or 0.0
    return Chart(
        name="recovery" if bands else "on-time",
        question=after or "Are the answers on time, all the time?",
        note=_note(comparison),
        x_label="time, seconds",
        y_label=f"answers on time per second (mean of {SMOOTHED_BUCKETS * _bucket_s(cells[0]):g} s)",
        curves=tuple(_rate(cell, bands) for cell in cells),
        bands=bands,
        levels=(Level(capacity, "capacity"),),
    )


def _rate(cell: Cell, bands: Sequence[Band]) -> Curve:
    bucket_s = _bucket_s(cell)
    rates = [(value or 0.0) / bucket_s for value in cell.series(lambda series: series.on_time)]
    edges = {round(edge / bucket_s) for band in bands for edge in (band.start, band.end)}
    return over_buckets(cell, smoothed(rates, sorted(edges)))


def over_buckets(cell: Cell, values: Sequence[float | None]) -> Curve:
    """One value per bucket, drawn at its middle."""
    bucket_s = _bucket_s(cell)
    return Curve(cell.policy, tuple((place + 0.5) * bucket_s for place in range(len(values))), tuple(values))


def _bucket_s(cell: Cell) -> float:
    return cell.reports[0].series.bucket_s


def service(comparison: Comparison) -> Panels | None:
    """The service of each tenant so far, in seconds of all workers. None where tenants are equal or have no series."""
    cells = comparison.at(comparison.loads[-1])
    names = list(cells[0].reports[0].series.per_tenant_served_cost)
    if len(names) < 2 or len(names) < comparison.scenario.tenant_count:
        return None
    if len(comparison.scenario.tenants) == 1 and not isinstance(comparison.scenario.tenants[0].arrivals, Trace):
        return None  # equal tenants: the lines would coincide
    return Panels(
        name="service",
        question="Does every tenant get its share?",
        note=f"Service received so far, for each tenant, in seconds of all workers. {_note(comparison)}",
        x_label="time, seconds",
        y_label="service received, seconds",
        panels=tuple(Panel(cell.policy, tuple(_received(cell)), _gap(cell)) for cell in _compared(cells)),
    )


def _compared(cells: Sequence[Cell]) -> list[Cell]:
    """Weir, then the policies with the smallest and the largest gap."""
    ours = [cell for cell in cells if cell.policy.startswith("weir")][:1]
    others = [cell for cell in cells if not cell.policy.startswith("weir")]
    others.sort(key=lambda cell: cell.mean(gap_s) or 0.0)
    picked = others if len(others) < MAX_PANELS else [others[0], others[-1]]
    return [*ours, *picked][:MAX_PANELS]


def _received(cell: Cell) -> Iterator[Curve]:
    report = cell.reports[0]
    for tenant, costs in report.series.per_tenant_served_cost.items():
        sums = tuple(accumulate((cost / report.capacity.cost_per_s for cost in costs), initial=0.0))
        yield Curve(tenant, tuple(place * report.series.bucket_s for place in range(len(sums))), sums)


def _gap(cell: Cell) -> str:
    gap = cell.mean(gap_s)
    return f"largest gap {seconds(gap)}" if gap is not None else ""


# ---- waste


def waste(comparison: Comparison) -> Bars:
    """Useful and wasted worker time at the highest load."""
    return Bars(
        name="waste",
        question="How much work is done for nobody?",
        note=_note(comparison),
        x_label="share of the workers' time",
        bars=tuple(_bar(cell) for cell in comparison.at(comparison.loads[-1])),
    )


def _bar(cell: Cell) -> Bar:
    available, busy, useful = (
        cell.mean(read) or 0.0
        for read in (
            lambda report: report.work.available_s,
            lambda report: report.work.busy_s,
            lambda report: report.work.useful_s,
        )
    )
    available = available or 1.0
    return Bar(cell.policy, useful / available, busy / available - useful / available)


# ---- shared


def events(scenario: Scenario) -> tuple[Band, ...]:
    """Phases of the first group and failures of the workers, without duplicates."""
    bands = []
    for group in scenario.tenants[:1]:
        if not isinstance(group.arrivals, Trace | Closed):
            load = group.arrivals.load or 0.0
            bands += [
                Band(phase.from_s, phase.until_s, f"{phase.times * load:.3g}x capacity", "a burst")
                for phase in group.arrivals.phases
            ]
    for workers in scenario.workers:
        for failure in workers.failures:
            count = failure.workers
            who = "all workers" if count is None else "one worker" if count == 1 else f"{count} workers"
            trouble = "an outage" if failure.kind == "down" else "a slow spell"
            bands.append(Band(failure.from_s, failure.until_s, f"{who} {failure.kind}", trouble))
    shown = (band._replace(end=min(band.end, scenario.duration_s)) for band in bands)
    return tuple(dict.fromkeys(band for band in shown if band.start < scenario.duration_s))


def smoothed(values: Sequence[float], edges: Sequence[int] = (), over: int = SMOOTHED_BUCKETS) -> tuple[float, ...]:
    """A centred mean over `over` buckets, never across an edge, so that a step stays a step."""
    half, bounds = over // 2, [0, *(edge for edge in edges if 0 < edge < len(values)), len(values)]
    return tuple(
        fmean(values[max(first, i - half) : min(last, i + half + 1)])
        for first, last in pairwise(bounds)
        for i in range(first, last)
    )


def _deadline(scenario: Scenario) -> tuple[Level, ...]:
    """The deadline, if all tenants have the same constant one."""
    values = {getattr(group.deadline_s, "value", None) for group in scenario.tenants}
    only = values.pop() if len(values) == 1 else None
    return (Level(float(only), f"deadline, {only:g} s"),) if only else ()


def _times(curves: Sequence[Curve], levels: Sequence[Level]) -> tuple[float, ...]:
    shown = [*(value for curve in curves for value in curve.ys if value), *(level.y for level in levels)]
    if not shown:
        return TIMES_S[:5]
    low = max((tick for tick in TIMES_S if tick <= min(shown)), default=TIMES_S[0])
    high = min((tick for tick in TIMES_S if tick >= max(shown)), default=TIMES_S[-1])
    return tuple(tick for tick in TIMES_S if low <= tick <= high)


def _note(comparison: Comparison) -> str:
    seeds = comparison.seeds
    which = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{comparison.name}: {comparison.scenario.slots} slots, virtual time, {which}"
