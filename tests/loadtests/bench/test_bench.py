"""The bench's own parts: its arithmetic and its tables. What it measures is not tested: machines differ."""

from __future__ import annotations

import io

from rich.console import Console

from loadtests.bench.summary import result, table
from loadtests.report.figure import Figure, median, number
from loadtests.report.result import markdown

HELD = Figure("throughput", 6123.4, "requests/s", 5000, note="p50 4.0 ms")
MISSED = Figure("memory", 91.0, "MB", 80, at_least=False)
PLAIN = Figure("pace", 1.234, "chunks/s")
MEASURED = {"router": [HELD, MISSED], "retrieval": [PLAIN]}


def test_a_figure_holds_its_target_misses_it_or_has_none():
    assert [figure.verdict for figure in (HELD, MISSED, PLAIN)] == ["held", "**missed**", ""]
    assert [figure.wanted for figure in (HELD, MISSED, PLAIN)] == ["≥ 5,000 requests/s", "≤ 80.0 MB", ""]
    assert Figure("latency", float("nan"), "ms", 1.5, at_least=False).verdict == "**missed**"


def test_numbers_keep_three_digits_that_count():
    assert [number(value) for value in (12345.6, 99.94, 1.2345, -0.5)] == ["12,346", "99.9", "1.23", "-0.50"]


def test_repeated_runs_become_their_median_with_its_extremes_and_its_note():
    runs = [[Figure("a", value, "ms", note=f"run of {value}")] for value in (3.0, 1.0, 2.0)]
    (figure,) = median(runs)
    assert (figure.value, figure.low, figure.high, figure.note) == (2.0, 1.0, 3.0, "run of 2.0")
    assert figure.shown == "2.00 ms (1.00-3.00)"


def test_the_table_shows_every_figure_with_its_verdict():
    out = io.StringIO()
    Console(file=out, width=160).print(table(MEASURED))
    _, *rows = out.getvalue().splitlines()
    assert [row.split()[:2] for row in rows] == [["router", "throughput"], ["memory", "91.0"], ["retrieval", "pace"]]
    assert "6,123 requests/s ≥ 5,000 requests/s held" in " ".join(rows[0].split())
    assert "missed" in rows[1]


def test_the_page_names_machine_command_targets_and_method():
    page = markdown(result(MEASURED, 4), command="make bench", machine="2 cores of a Quern")
    assert "`make bench`, on 2 cores of a Quern" in page
    assert "1 of 2 targets held" in page
    assert "| router | throughput | 6,123 requests/s | ≥ 5,000 requests/s | held | p50 4.0 ms |" in page
    assert "closed loop" in page
    assert "open loop" in page
