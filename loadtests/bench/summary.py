"""Figures as a table for the terminal, and as the page docs/results/bench.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from loadtests.report import page
from loadtests.report.figure import Figure
from loadtests.report.result import Result

Measured = Mapping[str, Sequence[Figure]]

METHOD = """\
Throughput is measured with a closed loop: a fixed number of clients, each sending its next request after the previous
answer, so a slow answer also delays the next request. Added latency is measured with an open loop: Poisson arrivals
that do not wait for answers, timed from the intended send time, through the router and to the stub alone; the figure is
the difference of the two quantiles. Loads last {seconds:g} s each, after a short warm-up; those of the open loop last
twice as long.

The router has one core to itself. The stub behind it, which answers at once, and the client share the other one, and
may limit a figure: "client and stub alone" is what they reach without the router. This part runs three times, and the
figure is the median with the lowest and the highest value. All other parts run once and share all cores with their
clients; retrieval also with its database, its cache and the proxies that slow them. Retrieval is measured here briefly,
on a small tenant; `python -m loadtests.bench retrieval` takes longer on a big one, and its page has the details.
Uncached retrievals all have different questions, and only those count that were answered from the database within a
budget of 100 ms. Memory is resident memory, child processes included. A start is timed from the command to its line
"ready", with all packages installed and a warm page cache. The simulator is measured in processor time, at ten times
capacity. The governor has one core, its client another; governor.md has more. The generator is the open loop of the
load tests: one core, before a stub on the other. Other load on the machine changes every figure.
"""


def table(measured: Measured, *, notes: bool = True) -> Table:
    """The table for the terminal; a narrow one omits the notes."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("part", "figure", "value", "target", ""):
        shown.add_column(name, justify="right" if name == "value" else "left", no_wrap=True)
    if notes:
        shown.add_column("note", style="dim")
    for part, figure, is_first in _rows(measured):
        verdict = Text(figure.verdict.strip("*"), style={None: "", True: "green", False: "bold red"}[figure.held])
        cells: list[str | Text] = [figure.name, figure.shown, figure.wanted, verdict]
        shown.add_row(Text(part if is_first else "", style="bold"), *cells, *([figure.note] if notes else []))
    return shown


def result(measured: Measured, seconds: float) -> Result:
    blocks = [
        page.parts_summary(measured), page.parts_table(measured),
        "## How it is measured\n" + METHOD.format(seconds=seconds),
    ]  # fmt: skip
    return Result("Figures", measured, blocks)


def _rows(measured: Measured) -> Iterator[tuple[str, Figure, bool]]:
    for part, figures in measured.items():
        for position, figure in enumerate(figures):
            yield part, figure, position == 0
