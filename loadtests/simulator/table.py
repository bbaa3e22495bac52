"""The comparison as tables for a terminal of 100 columns: a row per policy.

A second table has the figures of only some scenarios (hints, levels, retries).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadtests.scenarios.model import TenantGroup
from loadtests.simulator.columns import GROUPED, MAIN, MATRICES, MORE, Column, load_name, of_group
from loadtests.simulator.results import Cell, Comparison
from loadtests.simulator.targets import targets

POLICY_WIDTH = 22
PAGE_WIDTH = 100
MAX_FULL_TABLES = 3
NOTHING = "[dim]–"


def page(comparison: Comparison) -> RenderableType:
    return Group(*_parts(comparison))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    yield ""
    yield Text(comparison.scenario.title, style="bold")
    yield Text(_conditions(comparison), style="dim")
    scenario = comparison.scenario
    if about := " ".join([scenario.question, *scenario.about.split(), *scenario.watch]).strip():
        yield Constrain(Padding(Text(about), (1, 0, 0, 2), expand=False), PAGE_WIDTH)
    loads = comparison.loads
    if len(loads) > MAX_FULL_TABLES:
        for column in MATRICES:
            yield ""
            yield Text(column.head, style="dim")
            yield _matrix(comparison, column)
        loads = loads[-1:]
    for load in loads:
        cells = comparison.at(load)
        yield ""
        yield Text(_offered(cells), style="dim")
        yield _table(cells, MAIN)
        if more := [column for column in MORE if column.has_value(cells)]:
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
    multiple = f" = {times:.3g}x capacity" if times is not None and first.load is None else ""
    at = f"at {load_name(first.load)}: " if first.load is not None else ""
    return f"{at}offered {asked:,.{0 if asked >= 20 else 1}f} requests/s{multiple}"


def _table(cells: Sequence[Cell], columns: Sequence[Column]) -> Table:
    heads = [("policy", ""), *((column.head, column.below) for column in columns)]
    return _grid(heads, ((cell.policy, *(column.text(cell, NOTHING) for column in columns)) for cell in cells))


def _matrix(comparison: Comparison, column: Column) -> Table:
    heads = [("policy", ""), *((load_name(load), "") for load in comparison.loads if load is not None)]
    rows = ((policy, *(column.text(cell, NOTHING) for cell in comparison.of(policy))) for policy in comparison.policies)
    return _grid(heads, rows)


def _tenants(cells: Sequence[Cell], groups: Sequence[TenantGroup]) -> Table:
    """A row per policy and group of tenants."""
    heads = [("policy", ""), ("tenants", ""), *((head, below) for head, below, *_ in GROUPED)]
    rows = (
        (cell.policy, group.name, *(column.text(cell, NOTHING) for column in of_group(group)))
        for cell in cells
        for group in groups
    )
    return _grid(heads, rows)


def _grid(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> Table:
    """Two lines of headings, and rows that begin with their policy, which is shown once."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, max_width=POLICY_WIDTH, overflow="ellipsis")
    for _ in heads[1:]:
        table.add_column(justify="right", no_wrap=True)
    for line in range(2):
        if any(words := [head[line] for head in heads]):
            table.add_row(*words, style="dim")
    before = ""
    for policy, *values in rows:
        table.add_row(
            "" if policy == before else policy, *values, style="bold cyan" if policy.startswith("weir") else ""
        )
        before = policy
    return table
