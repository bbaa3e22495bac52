"""The comparison in the terminal: policies below one another, the same figures beside each other.

It fits into 100 columns. What all policies of a table share (load, capacity) stands above it, once; figures that only
some scenarios have (hints, levels, retries) come in a second table, with the columns that say something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from services.lab.simulate.report import PolicyReport, TenantReport
from services.lab.simulate.results import Cell, Comparison, Figure
from services.lab.simulate.scenario import TenantGroup

POLICY_WIDTH = 22
PAGE_WIDTH = 100
MOST_FULL_TABLES = 3
LEAST_ASKED = 20
NOTHING = Text("–", style="dim")


@dataclass(frozen=True, slots=True)
class Column:
    """Two lines of heading, the figure below them, and how it is written."""

    head: str
    below: str
    read: Figure
    write: Callable[[float], str]
    matters: Figure | None = None
    """The column is there if any policy has this figure; by default the one that is shown."""


# ---- how figures are written


def share(value: float) -> str:
    """`97%`, and a decimal where it matters: `0.4%`, `99.6%`."""
    percent = 100 * value
    if 0 < percent < 0.05:
        return "<0.1%"
    near_an_end = 0 < abs(percent) < 9.95 or 90.05 < percent < 99.95
    return f"{percent:.1f}%" if near_an_end else f"{percent:.0f}%"


def seconds(value: float) -> str:
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"


def milliseconds(value: float) -> str:
    """Below ten seconds the number of milliseconds; what is longer says its unit."""
    return f"{1000 * value:,.0f}" if value < 9.9995 else f"{value:.1f}s" if value < 99.95 else f"{value:.0f}s"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def load_name(load: float) -> str:
    return f"{load:g}x"


# ---- the figures


def on_time_share(report: PolicyReport) -> float | None:
    return report.ledger.on_time / report.ledger.distinct if report.ledger.distinct else None


def refused_share(report: PolicyReport) -> float | None:
    return report.ledger.rejected_total / report.ledger.distinct if report.ledger.distinct else None


def gap_s(report: PolicyReport) -> float | None:
    """The fairness gap in seconds of all workers' work."""
    gap = report.fairness.gap_cost
    return None if gap is None else gap / report.capacity.cost_per_s


def worst_tenant(tenants: Sequence[TenantReport]) -> float | None:
    """The smallest share on time, of those who asked often enough for a share to mean something."""
    shares = [each.on_time_share for each in tenants if each.ledger.distinct >= LEAST_ASKED]
    return min((value for value in shares if value is not None), default=None)


def _has_tenants(report: PolicyReport) -> float | None:
    return 1.0 if len(report.tenants) > 1 else None


def _retried(report: PolicyReport) -> float | None:
    return 1.0 if report.ledger.attempts > report.ledger.distinct else None


def _degraded(report: PolicyReport) -> float | None:
    return 1.0 if any(answers for level, answers in report.quality.by_level.items() if level) else None


def _cut(report: PolicyReport) -> float | None:
    return 1.0 if report.quality.clamped or _degraded(report) else None


MAIN = (
    Column("on time", "of asked", on_time_share, share),
    Column("on time", "of cap.", lambda report: report.goodput_cost_to_capacity, ratio),
    Column("wait", "p50 ms", lambda report: report.wait_s.p50, milliseconds),
    Column("wait", "p95 ms", lambda report: report.wait_s.p95, milliseconds),
    Column("latency", "p95 ms", lambda report: report.latency_s.p95, milliseconds),
    Column("refused", "", refused_share, share),
    Column("dropped", "", lambda report: report.dropped_after_admission_share, share),
    Column("wasted", "", lambda report: report.work.wasted_share, share),
    Column("gap", "s", gap_s, short),
    Column("sim.", "k/s", lambda report: report.simulated_per_real_s / 1000, short),
)
MORE = (
    Column("missed", "running", lambda report: report.missed_after_worker_share, share),
    Column("latency", "/ deadline p99", lambda report: report.latency_to_deadline.p99, ratio),
    Column("Jain index", "least, 60 s", lambda report: report.fairness.jain_least, ratio),
    Column("on time,", "worst tenant", lambda report: worst_tenant(report.tenants), share, _has_tenants),
    Column("starts", "per request", lambda report: report.dispatches_per_distinct, ratio, _retried),
    Column("hints", "admitted", lambda report: report.hints.first_admitted_share, share),
    Column("worth", "by level", lambda report: report.quality.weighted_on_time, whole, _degraded),
    Column("worth", "by tokens", lambda report: report.quality.token_weighted_on_time, whole, _cut),
    Column("level", "changes/min", lambda report: report.quality.level_changes_per_min, ratio, _degraded),
)


MATRICES = (
    ("work done on time, relative to capacity", lambda report: report.goodput_cost_to_capacity, ratio),
    ("wait of the admitted, p95, ms", lambda report: report.wait_s.p95, milliseconds),
    ("dropped after admission, of the admitted", lambda report: report.dropped_after_admission_share, share),
    ("work wasted, of the time workers were busy", lambda report: report.work.wasted_share, share),
)


# ---- the page


def show(comparison: Comparison, console: Console) -> None:
    console.print(page(comparison))


def page(comparison: Comparison) -> RenderableType:
    """Everything about a comparison, from the title to the last table."""
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    yield ""
    yield Text(comparison.scenario.title, style="bold")
    yield Text(_conditions(comparison), style="dim")
    if about := comparison.scenario.about:
        yield Constrain(Padding(Text(" ".join(about.split())), (1, 0, 0, 2), expand=False), PAGE_WIDTH)
    loads = comparison.loads
    if len(loads) > MOST_FULL_TABLES:
        for title, read, write in MATRICES:
            yield ""
            yield Text(title, style="dim")
            yield _matrix(comparison, read, write)
        loads = loads[-1:]
    for load in loads:
        cells = comparison.at(load)
        yield ""
        yield Text(_offered(cells), style="dim")
        yield _table(cells, MAIN)
        if more := [column for column in MORE if _says_something(column, cells)]:
            yield ""
            yield _table(cells, more)
        if len(comparison.scenario.tenants) > 1:
            yield ""
            yield _tenants(cells, comparison.scenario.tenants)


def _conditions(comparison: Comparison) -> str:
    """`16 slots · capacity 199/s, measured · 4 tenants · 20 s · 3 seeds`"""
    scenario, cell = comparison.scenario, comparison.cells[0]
    capacity = cell.mean(lambda report: report.capacity.requests_per_s) or 0.0
    seeds = comparison.seeds
    tenants = sum(each.tenants for each in cell.reports[0].tenants)
    parts = [
        f"{scenario.slots} slots",
        f"capacity {capacity:,.{0 if capacity >= 20 else 1}f} requests/s, measured",
        f"{tenants:,} tenant{'s' if tenants > 1 else ''}",
        f"{scenario.duration_s:g} simulated seconds",
        f"mean of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}",
    ]
    return " · ".join(parts)


def _offered(cells: Sequence[Cell]) -> str:
    first = cells[0]
    asked = first.mean(lambda report: report.ledger.distinct / report.window_s) or 0.0
    times = first.load if first.load is not None else first.mean(lambda report: report.offered_load)
    told = f" = {times:.3g}x capacity" if times is not None and first.load is None else ""
    at = f"at {load_name(first.load)}: " if first.load is not None else ""
    return f"{at}offered {asked:,.{0 if asked >= 20 else 1}f} requests/s{told}"


def _says_something(column: Column, cells: Sequence[Cell]) -> bool:
    return any(cell.mean(column.matters or column.read) is not None for cell in cells)


def _table(cells: Sequence[Cell], columns: Sequence[Column]) -> Table:
    table = _grid(("policy", ""), [(column.head, column.below) for column in columns])
    for cell in cells:
        table.add_row(cell.policy, *(_written(cell, column) for column in columns), style=_style(cell.policy))
    return table


def _matrix(comparison: Comparison, read: Figure, write: Callable[[float], str]) -> Table:
    heads = [(load_name(load), "") for load in comparison.loads if load is not None]
    table = _grid(("policy", ""), heads)
    for policy in comparison.policies:
        cells = comparison.of(policy)
        table.add_row(policy, *(_value(cell.mean(read), write) for cell in cells), style=_style(policy))
    return table


def _grid(first: tuple[str, str], heads: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, max_width=POLICY_WIDTH, overflow="ellipsis")
    for _ in heads:
        table.add_column(justify="right", no_wrap=True)
    for line in range(2):
        words = [first[line], *(head[line] for head in heads)]
        if any(words):
            table.add_row(*words, style="dim")
    return table


def _written(cell: Cell, column: Column) -> RenderableType:
    return _value(cell.mean(column.read), column.write)


def _value(value: float | None, write: Callable[[float], str]) -> RenderableType:
    return NOTHING if value is None else write(value)


def _style(policy: str) -> str:
    return "bold cyan" if policy.startswith("weir") else ""


# ---- by tenant


def _tenants(cells: Sequence[Cell], groups: Sequence[TenantGroup]) -> Table:
    heads = [
        ("on time", "of asked"),
        ("worst", "tenant"),
        ("wait", "p95 ms"),
        ("latency", "p95 ms"),
        ("share of", "service"),
    ]
    table = _grid(("policy", ""), [("tenants", ""), *heads])
    for cell in cells:
        for index, group in enumerate(groups):
            name = cell.policy if index == 0 else ""
            table.add_row(name, group.name, *_group_row(cell, group), style=_style(cell.policy))
    return table


def _group_row(cell: Cell, group: TenantGroup) -> Iterator[RenderableType]:
    def of(read: Callable[[list[TenantReport]], float | None]) -> float | None:
        return cell.mean(lambda report: read(members(report, group)))

    yield _value(of(lambda found: _share_of(found)), share)
    yield _value(of(lambda found: worst_tenant(found)), share)
    yield _value(of(lambda found: _mean(each.wait_s.p95 for each in found)), milliseconds)
    yield _value(of(lambda found: _mean(each.latency_s.p95 for each in found)), milliseconds)
    yield _value(of(lambda found: sum(each.served_cost_share for each in found)), share)


def members(report: PolicyReport, group: TenantGroup) -> list[TenantReport]:
    """The reports of a group's tenants: one each, or one for all of them where there are very many."""
    return [each for each in report.tenants if each.name == group.name or each.name.startswith(f"{group.name}-")]


def _share_of(found: Sequence[TenantReport]) -> float | None:
    distinct = sum(each.ledger.distinct for each in found)
    return sum(each.ledger.on_time for each in found) / distinct if distinct else None


def _mean(values: Iterator[float | None]) -> float | None:
    """A tenant counts once, however much it asks."""
    known = _known(values)
    return fmean(known) if known else None


def _known(values: Iterator[float | None]) -> list[float]:
    return [value for value in values if value is not None]
