"""The scenarios of the page: question, table with a row for each subject, and further figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import fill

from loadtests.report.figure import formatted
from loadtests.report.page import table
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Cell, Row, Series, TenantRow
from loadtests.runs.matrix.simulated import Simulated
from loadtests.runs.matrix.subjects import SUBJECTS, TITLES

WIDTH = 120
COLUMNS = """\
| column | meaning |
|---|---|
| asked | requests a second, and as a multiple of the capacity; retries are not counted |
| answered | answers with status 200 a second |
| p50, p95, p99 | of the admitted, from the intended send time: answers, and admitted requests without an answer |
| refused | share of the requests; in brackets those, of all, that were admitted and rejected at their deadline |
| refused after | p50 of the time until a rejection |
| failed | 5xx that are no rejections, such as 504 at the deadline; broken answers; client timeouts; late answers |
| goodput | tokens of answers on time over the capacity; answers longer than those of the measurement can exceed 1 |
| in vain | share of the workers' tokens that were in no answer on time |
| fairness | Jain's index of the tokens that tenants got on time over their max-min fair shares: 1 is even |
"""
MARKED = "† The client itself sent more than 5 % of this load over 20 ms late, so the run measured the machine.\n"


def scenarios(series: Series, cases: Mapping[str, Case]) -> Iterator[str]:
    yield "## Scenarios\n"
    yield COLUMNS
    for name, case in cases.items():
        cells = [cell for subject in SUBJECTS if (cell := series.cells.get(f"{name} {subject.name}")) is not None]
        if cells:
            yield from _scenario(case, cells)
            yield from _simulated(series.simulated.get(name))


def _scenario(case: Case, cells: Sequence[Cell]) -> Iterator[str]:
    scenario = case.scenario
    yield f"### {case.title}\n"
    yield wrapped(" ".join([scenario.question, scenario.about, *scenario.watch])) + "\n"
    yield f"`loadtests/scenarios/{case.name}.yaml`\n"
    names = list(dict.fromkeys(row.name for cell in cells for row in cell.rows))
    for name in names:
        if len(names) > 1:
            yield f"{'The whole run' if name == case.name else f'`{name}`'}:\n"
        rows = ((cell, next((row for row in cell.rows if row.name == name), None)) for cell in cells)
        yield from table(HEADER, (_line(case, cell, row) for cell, row in rows))
        yield ""
    if case.frontends > 1:
        yield from _served(cells)
    yield from _notes(cells)


def _served(cells: Sequence[Cell]) -> Iterator[str]:
    """What each tenant was served, and the first one's quotient to the others together."""
    played = [(TITLES[cell.subject], cell.rows[0].tenants) for cell in cells if cell.rows]
    names = [tenant.name for tenant in played[0][1]] if played else []
    yield "Tokens of the answers, late ones too:\n"
    rows = ((title, *(f"{each.tokens:,}" for each in tenants), _quotient(tenants)) for title, tenants in played)
    yield from table(("subject", *(f"{name}:" for name in names), "quotient:"), rows)
    yield ""


def _quotient(tenants: Sequence[TenantRow]) -> str:
    first, *others = tenants
    return f"{first.tokens / max(1, sum(each.tokens for each in others)):.2f} to 1"


HEADER = (
    "subject", "asked:", "answered:", "p50:", "p95:", "p99:", "refused:", "refused after:", "failed:", "goodput:",
    "in vain:", "fairness:",
)  # fmt: skip


def _simulated(found: Simulated | None) -> Iterator[str]:
    if found is None:
        return
    load = found.rows[0].load
    yield f"In the simulator{'' if load is None else f', at {load:g}x'}, the scheduler alone and other policies:\n"
    groups = list(dict.fromkeys(name for row in found.rows for name in row.groups))
    columns = ("policy", "on time:", "goodput:", "wait p95:", "latency p95:", "refused:", "in vain:")
    yield from table((*columns, *(f"{name} on time:" for name in groups)), (
        (row.policy, *(shown(value) for shown, value in (
            (_share, row.on_time), (_two, row.goodput), (_ms, row.wait_p95_ms), (_ms, row.latency_p95_ms),
            (_share, row.refused), (_share, row.in_vain), *((_share, row.groups.get(name)) for name in groups),
        )))
        for row in found.rows
    ))  # fmt: skip
    yield ""


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms"


def _line(case: Case, cell: Cell, row: Row | None) -> tuple[str, ...]:
    title = TITLES[cell.subject]
    if row is None:
        return title, "could not be played", *[""] * (len(HEADER) - 2)
    dropped = f" ({percent(row.dropped)})" if row.dropped else ""
    changes = row.name == case.name and case.changes
    return (
        title + ("" if cell.believable else " †"),
        f"{row.asked_per_s:,.0f}/s, {'up to ' if changes else ''}{row.load:g}x",
        f"{row.answers_per_s:,.0f}/s",
        *(f"{each:,.0f} ms" for each in (row.p50_ms, row.p95_ms, row.p99_ms)),
        percent(row.refused) + dropped,
        f"{row.refused_p50_ms:,.1f} ms" if row.refused else "",
        percent(row.failed),
        f"{row.goodput:.2f}",
        percent(row.in_vain),
        "" if row.fairness is None else f"{row.fairness:.2f}",
    )


def wrapped(text: str, indent: str = "") -> str:
    return fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def percent(share: float) -> str:
    """A share as a percentage, with two digits below 1 %; `0 %` only for none."""
    return "0 %" if share == 0 else f"{100 * share:.2g} %" if share < 0.01 else f"{100 * share:.1f} %"


def _notes(cells: Sequence[Cell]) -> Iterator[str]:
    firsts = {cell.subject: cell.rows[0] for cell in cells if cell.rows}
    lines = [*_groups(firsts), *_figures(cells)]
    for words, shown, value in (*ROWS, *(CUT if any(row.mean_level for row in firsts.values()) else ())):
        if any(value(row) for row in firsts.values()):
            lines.append(f"{words}: " + _named({name: shown(value(row)) for name, row in firsts.items()}))
    if any(not cell.believable for cell in cells):
        yield MARKED
    for line in lines:
        yield wrapped(f"- {line[0].upper()}{line[1:]}.", "  ")
    if lines:
        yield ""


def _groups(rows: Mapping[str, Row]) -> Iterator[str]:
    tenants = next((row.tenants for row in rows.values()), [])
    groups = list(dict.fromkeys(group_of(tenant.name) for tenant in tenants))
    for group in groups if len(groups) > 1 else ():
        on_time = {name: percent(min(t.on_time for t in row.tenants if group_of(t.name) == group)) for name, row in
                   rows.items()}  # fmt: skip
        yield f"{group}, answered on time: {_named(on_time)}"


def group_of(tenant: str) -> str:
    """The group of a tenant: `small` for `small-3`, since several tenants of a group are numbered."""
    group, _, number = tenant.rpartition("-")
    return group if number.isdecimal() else tenant


ROWS: tuple[tuple[str, Callable[[float], str], Callable[[Row], float]], ...] = (
    ("answers shorter than asked", lambda value: percent(value), lambda row: row.cut),
    ("clients that left without an answer", lambda value: percent(value), lambda row: row.left),
    ("refusals with an individual hint", lambda value: percent(value), lambda row: row.own_hints),
    ("answers on time a second", lambda value: f"{value:.0f}", lambda row: row.on_time_per_s),
    ("answers on time with passages", percent, lambda row: row.with_passages),
)
CUT: tuple[tuple[str, Callable[[float], str], Callable[[Row], float]], ...] = (
    ("answers on time a second, each by what its level is worth", lambda value: f"{value:.1f}",
     lambda row: row.worth_per_s),
    ("mean level of the answers on time", lambda value: f"{value:.1f}", lambda row: row.mean_level),
)  # fmt: skip
"""Shown if answers were cut."""
FIGURES = {
    "back_after_s": ("nine tenths of the share on time before are kept again after", "s"),
    "on_time_before": ("on time before the fault", "%"),
    "on_time_during": ("on time during it", "%"),
    "on_time_after": ("on time after it", "%"),
    "dispatches": ("requests to workers, for each client request", ""),
    "attempts": ("attempts of a client, for each request", ""),
}


def _figures(cells: Sequence[Cell]) -> Iterator[str]:
    """Figures of runs with a fault or a changing load, and the p95 of tenants that were also measured alone."""
    for name, (words, unit) in FIGURES.items():
        having = {cell.subject: cell.figures[name] for cell in cells if "back_after_s" in cell.figures}
        if having:
            yield f"{words}: {_named({subject: formatted(value, unit) for subject, value in having.items()})}"
    for cell in cells:
        for name, value in cell.figures.items():
            if name.endswith("_alone_p95_ms"):
                group = name.removesuffix("_alone_p95_ms")
                yield f"{group}'s p95 alone: {TITLES[cell.subject]} {formatted(value, 'ms')}"


def _named(values: Mapping[str, str]) -> str:
    return ", ".join(f"{TITLES[name]} {value}" for name, value in values.items())
