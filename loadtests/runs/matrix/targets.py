"""Weir's targets as figures: those of each scenario's file, and those of all scenarios.

Figures of a table row are read here; `play` makes those of a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from loadtests.report.figure import Figure, at_most
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Cell, Row, Series, TenantRow
from loadtests.runs.matrix.subjects import WEIR, WITHOUT_CUTS
from loadtests.scenarios.figures import is_asked, judged
from loadtests.scenarios.model import Must

BASELINE = "baseline"
OBEYED = "hints_obeyed"
LATE_SHARE = 0.05
"""Above this share of late requests a run measured the machine."""


Read = Callable[[Cell, Row], float]


def _field(name: str) -> Read:
    return lambda cell, row: float(getattr(row, name))


def _figure(name: str) -> Read:
    return lambda cell, row: cell.figures[name]


def _wait(name: str) -> Read:
    return lambda cell, row: max(0.0, getattr(row, name) - cell.service_ms) / max(cell.service_ms, 1e-9)


OF_ROWS = (
    "on_time",
    "goodput",
    "p95_ms",
    "answers_p95_ms",
    "refused_p50_ms",
    "refused_p99_ms",
    "hinted",
    "in_vain",
    "failed",
    "with_passages",
)
OF_RUNS = ("back_after_s", "after_over_before", "dispatches")
READ: dict[str, Read] = {
    **{name: _field(name) for name in OF_ROWS},
    **{name: _figure(name) for name in OF_RUNS},
    "wait_p50": _wait("p50_ms"),
    "wait_p95": _wait("p95_ms"),
}
"""Figures of all tenants together."""
OF_TENANTS = ("on_time", "p95_over_alone", "p95_less_alone_ms", "served_share")
"""Figures of one tenant, or of a group's worst tenant."""


def known(must: Must) -> bool:
    return must.figure in (OF_TENANTS if must.of else (*READ, *ACROSS))


def promises(series: Series, cases: Mapping[str, Case]) -> dict[str, list[Figure]]:
    """Figures by the title of their scenario, and those of all scenarios. Titles without data are left out."""
    made: dict[str, list[Figure]] = {}
    for name, case in cases.items():
        cell = series.cell(name, WEIR.name)
        if cell is not None:
            figures = [target(series, cell, must) for must in case.scenario.must if is_asked(must, "processes")]
            made[case.title] = [figure for figure in figures if figure is not None]
        if name in series.simulated:
            made[f"{case.title}, simulated"] = list(series.simulated[name].figures)
    made["All scenarios"] = list(_everywhere(series, cases))
    return {title: figures for title, figures in made.items() if figures}


def target(series: Series, cell: Cell, must: Must) -> Figure | None:
    """The figure of one target; None if its reference was not measured."""
    row = next((row for row in cell.rows if row.name == (must.window or cell.scenario)), None)
    if row is None:
        return None
    if must.of:
        found = _of_tenants(cell, row, must)
    elif across := ACROSS.get(must.figure):
        found = across(series, cell, row)
    else:
        found = READ[must.figure](cell, row), ""
    return None if found is None else judged(must, *found)


def _over_uncut(series: Series, cell: Cell, row: Row) -> tuple[float, str] | None:
    uncut = series.row(cell.scenario, WITHOUT_CUTS.name, row.name)
    if uncut is None:
        return None
    return row.worth_per_s / max(uncut.worth_per_s, 1e-9), f"{row.worth_per_s:.1f}/s against {uncut.worth_per_s:.1f}/s"


def _over_baseline(series: Series, cell: Cell, row: Row) -> tuple[float, str] | None:
    usual = series.row(BASELINE, cell.subject)
    if usual is None:
        return None
    return row.p95_ms / max(usual.p95_ms, 1e-9), f"{row.p95_ms:.0f} ms against {usual.p95_ms:.0f} ms"


def _over_obeyed(series: Series, cell: Cell, row: Row) -> tuple[float, str] | None:
    obeyed = series.row(OBEYED, cell.subject, row.name)
    if obeyed is None:
        return None
    note = f"{row.honest_on_time:.1%} against {obeyed.honest_on_time:.1%}"
    return row.honest_on_time / max(obeyed.honest_on_time, 1e-9), note


ACROSS: dict[str, Callable[[Series, Cell, Row], tuple[float, str] | None]] = {
    "p95_over_baseline": _over_baseline,
    "worth_over_uncut": _over_uncut,
    "honest_over_obeyed": _over_obeyed,
}
"""Figures that compare with another scenario or subject: the p95 of the admitted with `baseline`, weighted answers with
`no_degradation`, the share on time of clients that obey their hints with `hints_obeyed`."""


def _of_tenants(cell: Cell, row: Row, must: Must) -> tuple[float, str] | None:
    own = [tenant for tenant in row.tenants if is_of(tenant, must.of or "")]
    if must.figure == "on_time":
        return min(tenant.on_time for tenant in own), ""
    if must.figure == "served_share":
        return sum(tenant.tokens for tenant in own) / max(1, sum(tenant.tokens for tenant in row.tenants)), ""
    alone_ms = cell.figures.get(f"{must.of}_alone_p95_ms")
    if alone_ms is None:
        return None
    beside_ms = max(tenant.answers_p95_ms for tenant in own)
    value = beside_ms / max(alone_ms, 1e-9) if must.figure == "p95_over_alone" else beside_ms - alone_ms
    return value, f"{beside_ms:.0f} ms against {alone_ms:.0f} ms"


def is_of(tenant: TenantRow, group: str) -> bool:
    return tenant.name == group or tenant.name.rpartition("-")[0] == group


def _everywhere(series: Series, cases: Mapping[str, Case]) -> Iterator[Figure]:
    """Targets over all scenarios; shares are the worst scenario's. Some exclude deliberate worker failures."""
    cells = {name: cell for name in cases if (cell := series.cell(name, WEIR.name)) is not None and cell.rows}
    if not cells:
        return
    yield at_most("answers sent after their deadline", sum(_all(cells, "late_answers")), 0)
    yield at_most("invited retries without a hint", sum(_all(cells, "hintless")), 0)
    late = max(cell.client_late for cell in cells.values())
    yield at_most("requests that the client itself sent late, worst run", late, LATE_SHARE, "%")
    well = {name: cell for name, cell in cells.items() if not cases[name].hurts}
    if not well:
        return
    for label, share, limit in SHARES:
        worst = max(well, key=lambda name: max(share(row) for row in well[name].rows))
        value = max(share(row) for row in well[worst].rows)
        yield at_most(label, value, limit, "%", cases[worst].title if value else "")
    yield at_most("wasted time of the workers' slots, worst run", max(_all(well, "wasted")), 0.01, "%")
    yield at_most("attempts that failed", sum(_all(well, "failed_tries")), 0)
    yield at_most("attempts that router and client count differently", sum(_all(well, "miscounted")), 0)


def _all(cells: Mapping[str, Cell], name: str) -> list[float]:
    return [cell.figures[name] for cell in cells.values()]


def _admitted(row: Row) -> float:
    return max(1e-9, 1 - row.refused + row.dropped)


SHARES: tuple[tuple[str, Callable[[Row], float], float], ...] = (
    ("admitted, and missed after using a worker, worst run", lambda row: row.exceeded / _admitted(row), 0.01),
    ("admitted, and rejected at the deadline, worst run", lambda row: row.dropped / _admitted(row), 0.05),
    ("failure rate, worst run", lambda row: row.failed, 0.0),
)
