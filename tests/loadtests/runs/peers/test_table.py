"""The page: a column for each gateway, Weir's targets, and every figure in which another did better."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.report.figure import Figure, at_least
from loadtests.runs.peers import table
from loadtests.runs.peers.cases import CASES
from loadtests.runs.peers.cell import NOTHING, Cell

CASE = CASES[0]


def cell(gateway: str, goodput: float, p50_ms: float, **more: bool) -> Cell:
    figures: Sequence[Figure] = [at_least("goodput", goodput, 0.97), Figure("p50", p50_ms, "ms", at_least=False)]
    return Cell(CASE.name, gateway, figures, on="a machine", **more)


def test_the_table_has_a_column_for_each_gateway_and_judges_weir() -> None:
    cells = [cell("Weir", 0.95, 99), cell("HAProxy", 0.28, NOTHING), Cell(CASE.name, "LiteLLM", fault="it has ended")]
    rows = list(table.rows(cells))
    assert rows[0] == "| Load | Figure | Weir | HAProxy | LiteLLM | Weir's target | |"
    assert rows[2] == f"| {CASE.about} | goodput | 0.95 | 0.28 | – | ≥ 0.97 | **missed** |"
    assert rows[3] == "|  | p50 | 99.0 ms | none | – |  |  |"


def test_a_load_in_which_the_client_was_late_is_marked() -> None:
    assert "0.99 †" in list(table.rows([cell("Weir", 0.99, 10, doubtful=True)]))[2]


def test_every_figure_in_which_another_is_clearly_better_is_told() -> None:
    cells = [cell("Weir", 0.95, 99), cell("HAProxy", 0.97, 50), cell("vllm-router", 1.2, 98)]
    lost = list(table.losses(cells))
    assert lost == [
        f"| {CASE.about} | goodput | 0.95 | vllm-router 1.20 |",
        f"| {CASE.about} | p50 | 99.0 ms | HAProxy 50.0 ms |",
    ]


def test_what_measured_the_machine_or_never_came_is_no_better() -> None:
    assert not list(table.losses([cell("Weir", 0.5, 99), cell("HAProxy", 1.0, 1, doubtful=True)]))
    assert not list(table.losses([cell("Weir", 1.0, 99), cell("HAProxy", 1.0, NOTHING)]))


def test_the_page_says_with_what_and_of_whom_it_speaks() -> None:
    page = table.page([cell("Weir", 1, 9), cell("HAProxy", 1, 9)], versions="HAProxy 2.6 of Debian")
    assert "a machine" in page
    assert "HAProxy 2.6 of Debian" in page
    assert "- HAProxy: " in page
    assert "- LiteLLM: " not in page
    assert "No other gateway did clearly better" in page
    assert "## Where another did better" in table.page([cell("Weir", 1, 9), cell("HAProxy", 1, 5)], versions="")
