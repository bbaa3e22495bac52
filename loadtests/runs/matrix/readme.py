"""The one table of the README: a few rows of the matrix, the router with and without its mechanisms, and HAProxy."""

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
Two workers of 8 slots, 80 ms an answer; the same arrivals each time, which do not wait for answers. *Bounded FIFO* is
the router with its mechanisms off. *HAProxy* and *sglang-router* stand in its place, HAProxy with a queue tuned to the
tightest deadline.
"""
NOTHING = "–"


def table(series: Series) -> str:
    """In Markdown, with a line below that says on what."""
    there = {cell.subject for cell in series.cells.values()}
    played = [subject for subject in SUBJECTS if subject.name in SHOWN and subject.name in there]
    columns = ("", *(f"{subject.title}:" for subject in played))
    rows = ((words, *(value(series, subject.name) for subject in played)) for words, value in ROWS)
    return "\n".join(page.table(columns, rows)) + "\n"


def block(series: Series) -> str:
    """What stands between the README's markers."""
    return f"\n{INTRO}\n{table(series)}\n`make matrix`, [the whole page]({PAGE}): {series.machines}.\n\n"


def put(text: str, series: Series) -> str:
    """The README with its table; unchanged where it has no place for one."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}{block(series)}{END}{after}" if begin and end else text


def update(readme: Path, series: Series) -> bool:
    """Write it; False where there is no place."""
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
    """A digit more where it matters: near nothing, and near all."""
    near = 0 < share < 0.1 or 0.99 <= share < 1
    return f"{100 * share:.1f} %" if near else f"{100 * share:.0f} %"


ROWS: tuple[tuple[str, Value], ...] = (
    ("p95 while there is room (three quarters of the capacity)",
     _of_row("baseline", lambda row: f"{row.p95_ms:.0f} ms")),
    ("Work answered on time at 10 times the capacity, of the capacity",
     _of_row("overload_10x", lambda row: _percent(row.goodput))),
    ("p95 of the admitted meanwhile (deadline 1 s)", _of_row("overload_10x", lambda row: f"{row.p95_ms:,.0f} ms")),
    ("A refusal comes after (p50)", _of_row("overload_10x", lambda row: f"{row.refused_p50_ms:,.0f} ms" if row.refused
     else NOTHING)),
    ("and says when to come back", _of_row("overload_10x", lambda row: _percent(row.hinted) if row.refused
     else NOTHING)),
    ("Tokens that workers wrote in vain", _of_row("overload_10x", lambda row: _percent(row.in_vain))),
    ("A tenant at a fifth of the capacity, beside one at 50 times: on time",
     _of_row("noisy_neighbour", _on_time_of("small"))),
    ("300 ms deadlines beside 3 s ones at 3 times the capacity: on time",
     _of_row("mixed_deadlines", _on_time_of("impatient"))),
    ("A retry storm, from 3 s after the outage: on time",
     _of_cell("retry_storm", lambda cell: _percent(cell.figures["on_time_after"]))),
    ("Bursty arrivals at 0.8 of the capacity: on time", _of_row("bursty", lambda row: _percent(row.on_time))),
)  # fmt: skip
