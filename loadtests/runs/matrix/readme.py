"""The README's table: a few rows of the matrix for Weir with and without its mechanisms, and for other gateways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loadtests.report import page
from loadtests.runs.matrix.cell import Cell, Row, Series
from loadtests.runs.matrix.subjects import SUBJECTS
from loadtests.runs.matrix.targets import is_of

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
PAGE = "docs/results/matrix.md"
SHOWN = ("weir", "no_admission", "fifo", "haproxy", "sglang-router")
INTRO = """\
Two workers of 8 slots, 80 ms an answer; the same open-loop arrivals for each. *Bounded FIFO* is the router with its
mechanisms off. *HAProxy* and *sglang-router* replace the router, HAProxy with a queue tuned to the tightest deadline.
"""
NOTHING = "–"


def table(series: Series) -> str:
    there = {cell.subject for cell in series.cells.values()}
    played = [subject for subject in SUBJECTS if subject.name in SHOWN and subject.name in there]
    columns = ("", *(f"{subject.title}:" for subject in played))
    rows = ((label, *(value(series, subject.name) for subject in played)) for label, value in ROWS)
    return "\n".join(page.table(columns, rows)) + "\n"


def block(series: Series) -> str:
    return f"\n{INTRO}\n{table(series)}\n`make matrix`, [the whole page]({PAGE}): {series.machines}.\n\n"


def put(text: str, series: Series) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}{block(series)}{END}{after}" if begin and end else text


def update(readme: Path, series: Series) -> bool:
    """Write the table into the README. Returns False without markers."""
    text = readme.read_text(encoding="utf-8")
    made = put(text, series)
    if BEGIN not in made:
        return False
    readme.write_text(made, encoding="utf-8")
    return True


Value = Callable[[Series, str], str]


def _of_row(name: str, shown: Callable[[Row], str]) -> Value:
    def value(series: Series, subject: str) -> str:
        row = series.row(name, subject)
        return NOTHING if row is None else shown(row)

    return value


def _of_cell(name: str, shown: Callable[[Cell], str]) -> Value:
    def value(series: Series, subject: str) -> str:
        cell = series.cell(name, subject)
        return NOTHING if cell is None else shown(cell)

    return value


def _on_time_of(tenant: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        return _percent(min(each.on_time for each in row.tenants if is_of(each, tenant)))

    return shown


def _percent(share: float) -> str:
    """A percentage, with one more digit near 0 and near 100."""
    near = 0 < share < 0.1 or 0.99 <= share < 1
    return f"{100 * share:.1f} %" if near else f"{100 * share:.0f} %"


ROWS: tuple[tuple[str, Value], ...] = (
    ("p95 without overload (three quarters of the capacity)",
     _of_row("baseline", lambda row: f"{row.p95_ms:.0f} ms")),
    ("Goodput at 10 times the capacity, as a share of it",
     _of_row("overload_10x", lambda row: _percent(row.goodput))),
    ("p95 of the admitted in that load (deadline 1 s)", _of_row("overload_10x", lambda row: f"{row.p95_ms:,.0f} ms")),
    ("Time until a rejection (p50)", _of_row("overload_10x", lambda row: f"{row.refused_p50_ms:,.0f} ms" if row.refused
     else NOTHING)),
    ("Rejections with a time to retry", _of_row("overload_10x", lambda row: _percent(row.hinted) if row.refused
     else NOTHING)),
    ("Wasted tokens of the workers", _of_row("overload_10x", lambda row: _percent(row.in_vain))),
    ("A tenant at a fifth of the capacity, beside one at 50 times: on time",
     _of_row("noisy_neighbour", _on_time_of("small"))),
    ("300 ms deadlines beside 3 s ones at 3 times the capacity: on time",
     _of_row("mixed_deadlines", _on_time_of("impatient"))),
    ("A retry storm, from 3 s after the outage: on time",
     _of_cell("retry_storm", lambda cell: _percent(cell.figures["on_time_after"]))),
    ("Bursty arrivals at 0.8 of the capacity: on time", _of_row("bursty", lambda row: _percent(row.on_time))),
)  # fmt: skip
