"""The scenarios of the page: what each asks, its table with a line for each policy, and what it measures beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

from loadtests.report.figure import told
from loadtests.runs.matrix.cell import Cell, Row, Series
from loadtests.runs.matrix.policies import POLICIES
from loadtests.runs.matrix.scenarios import SCENARIOS, Scenario

WIDTH = 120
COLUMNS = """\
| column | meaning |
|---|---|
| asked | requests a second, and as a multiple of the capacity; retries are not counted |
| answered | answers with status 200 a second |
| p50, p95, p99 | of the admitted, from the intended send time: answers, and what was let in but not answered |
| refused | share of the requests; in brackets, of all, those that had been let in and were told at their deadline |
| refused after | p50 of the time until a refusal |
| failed | 5xx that are no refusals, such as 504 at the deadline; broken answers; clients who gave up; late answers |
| goodput | tokens of answers on time over the capacity; longer answers than those it was measured with can pass 1 |
| in vain | share of the tokens written by workers which were in no answer on time |
| fairness | Jain's index of the tokens that tenants got on time over their max-min fair shares: 1 is even |
"""
MARKED = "† The client itself sent more than 5 % of this load over 20 ms late: it measured the machine.\n"


def scenarios(series: Series) -> Iterator[str]:
    yield "## Scenarios\n"
    yield COLUMNS
    for scenario in SCENARIOS:
        cells = [
            cell for policy in POLICIES if (cell := series.cells.get(f"{scenario.name} {policy.name}")) is not None
        ]
        if cells:
            yield from _scenario(scenario, cells)


def _scenario(scenario: Scenario, cells: Sequence[Cell]) -> Iterator[str]:
    yield f"### {scenario.title}\n"
    yield wrapped(f"{scenario.question} {scenario.about} *Look at:* {scenario.watch}") + "\n"
    names = list(dict.fromkeys(row.name for cell in cells for row in cell.rows))
    for name in names:
        if len(names) > 1:
            yield f"{_row_title(name)}:\n"
        yield HEADER
        yield f"|---{'|---:' * (HEADER.count('|') - 2)}|"
        for cell in cells:
            yield _line(cell, next((row for row in cell.rows if row.name == name), None))
        yield ""
    yield from _notes(scenario, cells)


HEADER = (
    "| policy | asked | answered | p50 | p95 | p99 | refused | refused after | failed | goodput | in vain | fairness |"
)


def _row_title(name: str) -> str:
    return "Overload, 10x: the burst itself" if name == "overload_10x" else "The whole run"


def _line(cell: Cell, row: Row | None) -> str:
    title = next(policy.title for policy in POLICIES if policy.name == cell.policy)
    if row is None:
        return f"| {title} | could not be played" + " |" * (HEADER.count("|") - 2)
    dropped = f" ({percent(row.dropped)})" if row.dropped else ""
    cells = (
        title + ("" if cell.believable else " †"),
        f"{row.asked_per_s:,.0f}/s, {'up to ' if row.name == 'burst' else ''}{row.load:g}x",
        f"{row.answers_per_s:,.0f}/s",
        *(f"{each:,.0f} ms" for each in (row.p50_ms, row.p95_ms, row.p99_ms)),
        percent(row.refused) + dropped,
        f"{row.refused_p50_ms:,.1f} ms" if row.refused else "",
        percent(row.failed),
        f"{row.goodput:.2f}",
        percent(row.in_vain),
        "" if row.fairness is None else f"{row.fairness:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def wrapped(text: str, indent: str = "") -> str:
    """In lines of the documents' length."""
    return fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def percent(share: float) -> str:
    """`0 %` is none at all."""
    return "0 %" if share == 0 else f"{100 * share:.2g} %" if share < 0.01 else f"{100 * share:.1f} %"


def _notes(scenario: Scenario, cells: Sequence[Cell]) -> Iterator[str]:
    """What this scenario measures beside the table."""
    firsts = {cell.policy: cell.rows[0] for cell in cells if cell.rows}
    lines = [*_tenants(firsts), *_figures(cells)]
    if any(row.cut for row in firsts.values()):
        lines.append("answers shorter than asked: " + _named({name: percent(row.cut) for name, row in firsts.items()}))
    if scenario.name in COUNTED:
        counts = {name: f"{row.on_time_per_s:.0f}" for name, row in firsts.items()}
        lines.append(f"answers on time a second: {_named(counts)}")
    if any(not cell.believable for cell in cells):
        yield MARKED
    for line in lines:
        yield wrapped(f"- {line[0].upper()}{line[1:]}.", "  ")
    if lines:
        yield ""


def _tenants(rows: Mapping[str, Row]) -> Iterator[str]:
    """Each of two that are unlike."""
    tenants = next((row.tenants for row in rows.values()), [])
    for index, tenant in enumerate(tenants if len(tenants) == 2 else ()):
        on_time = {name: percent(row.tenants[index].on_time) for name, row in rows.items()}
        yield f"{tenant.name}, answered on time: {_named(on_time)}"


COUNTED = ("degradation", "mixed_sizes")
"""Where the number of answers tells what their tokens do not."""
FIGURES = {
    "back_after_s": ("nine tenths of the share on time are back, and stay, after", "s"),
    "on_time_before": ("on time before", "%"),
    "on_time_after": ("on time from 3 s after its end", "%"),
    "dispatches": ("requests to workers, for each of a client's", ""),
    "tries": ("tries of a client, for each request", ""),
    "solo_p95_ms": ("light's p95 alone", "ms"),
    "beside_p95_ms": ("light's p95 beside heavy", "ms"),
}


def _figures(cells: Sequence[Cell]) -> Iterator[str]:
    for name, (words, unit) in FIGURES.items():
        having = {cell.policy: told(cell.figures[name], unit) for cell in cells if name in cell.figures}
        if having:
            yield f"{words}: {_named(having)}"


def _named(values: Mapping[str, str]) -> str:
    titles = {policy.name: policy.title for policy in POLICIES}
    return ", ".join(f"{titles[name]} {value}" for name, value in values.items())
