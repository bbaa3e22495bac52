"""What must hold, as figures with targets: what each scenario's file says, and what holds in all of them.

Targets are Weir's. Figures of one row of the table are read here, those of a whole run are `play`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Cell, Row, Series, TenantRow
from loadtests.runs.matrix.subjects import WEIR
from loadtests.scenarios.model import Must

BASELINE = "baseline"
LATE_SHARE = 0.05
"""A run in which the client sent more of its requests late measured the machine."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a figure is called on a page, in which unit, and how it is read off a row and its cell."""

    words: str
    unit: str
    of: Callable[[Cell, Row], float]


def _field(name: str) -> Callable[[Cell, Row], float]:
    return lambda cell, row: float(getattr(row, name))


def _figure(name: str) -> Callable[[Cell, Row], float]:
    return lambda cell, row: cell.figures[name]


def _wait(name: str) -> Callable[[Cell, Row], float]:
    """In service times."""
    return lambda cell, row: max(0.0, getattr(row, name) - cell.service_ms) / max(cell.service_ms, 1e-9)


READINGS: dict[str, Reading] = {
    "on_time": Reading("answered on time", "%", _field("on_time")),
    "goodput": Reading("goodput / capacity", "", _field("goodput")),
    "wait_p50": Reading("wait of the admitted, p50", "service times", _wait("p50_ms")),
    "wait_p95": Reading("wait of the admitted, p95", "service times", _wait("p95_ms")),
    "p95_ms": Reading("p95 of the admitted", "ms", _field("p95_ms")),
    "answers_p95_ms": Reading("p95 of the answers", "ms", _field("answers_p95_ms")),
    "refused_p50_ms": Reading("refusals p50", "ms", _field("refused_p50_ms")),
    "refused_p99_ms": Reading("refusals p99", "ms", _field("refused_p99_ms")),
    "hinted": Reading("refusals that say when to come back", "%", _field("hinted")),
    "in_vain": Reading("tokens written that were in no answer on time", "%", _field("in_vain")),
    "failed": Reading("failure rate", "%", _field("failed")),
    "back_after_s": Reading("nine tenths of the share on time are back after", "s", _figure("back_after_s")),
    "after_over_before": Reading("on time afterwards / before", "", _figure("after_over_before")),
    "dispatches": Reading("requests to workers, for each of a client's", "", _figure("dispatches")),
}
"""Of all tenants together."""
TENANTS = {
    "on_time": ("answered on time", "%"),
    "p95_over_alone": ("p95 / alone", ""),
    "p95_less_alone_ms": ("p95 beyond alone", "ms"),
}
"""Of one tenant, or of the worst of a group."""
ACROSS = "p95_over_baseline"
"""The p95 of the admitted over that of the scenario `baseline`."""


def known(must: Must) -> bool:
    """Whether this stage can read the figure."""
    return must.figure in (TENANTS if must.of else (*READINGS, ACROSS))


def promises(series: Series, cases: Mapping[str, Case]) -> dict[str, list[Figure]]:
    """Figures by the title of their scenario, and of all of them; those of which something was measured."""
    made: dict[str, list[Figure]] = {}
    for name, case in cases.items():
        cell = series.cell(name, WEIR.name)
        if cell is not None:
            figures = [judged(series, cell, must) for must in case.scenario.must if wanted(must)]
            made[case.title] = [figure for figure in figures if figure is not None]
    made["All scenarios"] = list(_everywhere(series, cases))
    return {title: figures for title, figures in made.items() if figures}


def wanted(must: Must) -> bool:
    """Whether it is asked of real processes."""
    return not must.stages or "processes" in must.stages


def judged(series: Series, cell: Cell, must: Must) -> Figure | None:
    """The figure of a file's line; None where what it is compared with was not measured."""
    row = next((row for row in cell.rows if row.name == (must.window or cell.scenario)), None)
    if row is None:
        return None
    found = _of_tenants(cell, row, must) if must.of else _of_all(series, cell, row, must)
    if found is None:
        return None
    words, unit, value, note = found
    name = f"{must.of}: {words}" if must.of else words
    target = at_least if must.at_least is not None else at_most
    bound = must.at_least if must.at_least is not None else must.at_most
    assert bound is not None, "the model asks for one of the two"
    return target(name, value, bound, unit, must.note or note)


Found = tuple[str, str, float, str]


def _of_all(series: Series, cell: Cell, row: Row, must: Must) -> Found | None:
    if must.figure == ACROSS:
        usual = series.row(BASELINE, cell.subject)
        if usual is None:
            return None
        note = f"{row.p95_ms:.0f} ms against {usual.p95_ms:.0f} ms"
        return "p95 of the admitted / the baseline's", "", row.p95_ms / max(usual.p95_ms, 1e-9), note
    reading = READINGS[must.figure]
    return reading.words, reading.unit, reading.of(cell, row), ""


def _of_tenants(cell: Cell, row: Row, must: Must) -> Found | None:
    own = [tenant for tenant in row.tenants if is_of(tenant, must.of or "")]
    words, unit = TENANTS[must.figure]
    if must.figure == "on_time":
        return words, unit, min(tenant.on_time for tenant in own), ""
    alone_ms = cell.figures.get(f"{must.of}_alone_p95_ms")
    if alone_ms is None:
        return None
    beside_ms = max(tenant.answers_p95_ms for tenant in own)
    note = f"{beside_ms:.0f} ms against {alone_ms:.0f} ms"
    value = beside_ms / max(alone_ms, 1e-9) if must.figure == "p95_over_alone" else beside_ms - alone_ms
    return words, unit, value, note


def is_of(tenant: TenantRow, group: str) -> bool:
    """Whether the tenant is the group's, or one of several."""
    return tenant.name == group or tenant.name.rpartition("-")[0] == group


def _everywhere(series: Series, cases: Mapping[str, Case]) -> Iterator[Figure]:
    """What holds in every scenario; of shares, the worst scenario's. Some only where no worker fails on purpose."""
    cells = {name: cell for name in cases if (cell := series.cell(name, WEIR.name)) is not None and cell.rows}
    if not cells:
        return
    yield at_most("answers sent after their deadline", sum(_all(cells, "late_answers")), 0)
    yield at_most("invited retries without a hint", sum(_all(cells, "hintless")), 0)
    late = max(cell.client_late for cell in cells.values())
    yield at_most("requests that the client itself sent late, at worst", late, LATE_SHARE, "%")
    well = {name: cell for name, cell in cells.items() if not cases[name].hurts}
    if not well:
        return
    for words, share, most in SHARES:
        worst = max(well, key=lambda name: max(share(row) for row in well[name].rows))
        value = max(share(row) for row in well[worst].rows)
        yield at_most(words, value, most, "%", cases[worst].title if value else "")
    yield at_most("wasted time of the workers' slots, at worst", max(_all(well, "wasted")), 0.01, "%")
    yield at_most("tries that failed", sum(_all(well, "failed_tries")), 0)
    yield at_most("tries that router and client count differently", sum(_all(well, "miscounted")), 0)


def _all(cells: Mapping[str, Cell], name: str) -> list[float]:
    return [cell.figures[name] for cell in cells.values()]


def _admitted(row: Row) -> float:
    """Share of the requests that were let in."""
    return max(1e-9, 1 - row.refused + row.dropped)


SHARES: tuple[tuple[str, Callable[[Row], float], float], ...] = (
    ("let in, and missed after using a worker, at worst", lambda row: row.exceeded / _admitted(row), 0.01),
    ("let in, and told at the deadline that it is late, at worst", lambda row: row.dropped / _admitted(row), 0.05),
    ("failure rate at worst", lambda row: row.failed, 0.0),
)
