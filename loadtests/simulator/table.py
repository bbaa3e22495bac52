"""The comparison in the terminal: policies below one another, the same figures beside each other.

It fits into 100 columns. What all policies of a table share (load, capacity) stands above it, once; figures that only
some scenarios have (hints, levels, retries) come in a second table, with the columns that say something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadtests.scenarios.model import TenantGroup
from loadtests.simulator.columns import (
    MAIN,
    MATRICES,
    MORE,
    Column,
    load_name,
    milliseconds,
    share,
    worst_tenant,
)
from loadtests.simulator.readings import members
from loadtests.simulator.report import TenantReport
from loadtests.simulator.results import Cell, Comparison, Figure
from loadtests.simulator.targets import targets

POLICY_WIDTH = 22
PAGE_WIDTH = 100
MOST_FULL_TABLES = 3
NOTHING = Text("–", style="dim")


def page(comparison: Comparison) -> RenderableType:
    """Everything about a comparison, from the title to the last table."""
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    yield ""
    yield Text(comparison.scenario.title, style="bold")
    yield Text(_conditions(comparison), style="dim")
    scenario = comparison.scenario
    if told := " ".join([scenario.question, *scenario.about.split(), *scenario.watch]).strip():
        yield Constrain(Padding(Text(told), (1, 0, 0, 2), expand=False), PAGE_WIDTH)
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
    if figures := targets(comparison):
        yield ""
        yield Text("weir is to hold:", style="dim")
        for figure in figures:
            verdict = figure.verdict.strip("*")
            style = "green" if figure.held else "bold red"
            yield Text.assemble((f"  {verdict:<7}", style), f"{figure.name}: {figure.shown}, {figure.wanted}")


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


def _share_of(found: Sequence[TenantReport]) -> float | None:
    distinct = sum(each.ledger.distinct for each in found)
    return sum(each.ledger.on_time for each in found) / distinct if distinct else None


def _mean(values: Iterator[float | None]) -> float | None:
    """A tenant counts once, however much it asks."""
    known = _known(values)
    return fmean(known) if known else None


def _known(values: Iterator[float | None]) -> list[float]:
    return [value for value in values if value is not None]
