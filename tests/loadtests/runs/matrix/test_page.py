"""The page says what was measured: targets held or missed, every loss, and the same figures in the README."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.paths import ROOT
from loadtests.runs.matrix import kept, page, readme, targets, writing
from loadtests.runs.matrix.cell import Series, TenantRow
from loadtests.runs.matrix.losses import losses
from loadtests.runs.matrix.policies import POLICIES
from loadtests.runs.matrix.scenarios import SCENARIOS
from tests.loadtests.runs.matrix.made import MACHINE, cell, row, series

RESULTS = ROOT / "docs" / "results"


def whole() -> Series:
    return series(*(cell(scenario.name, policy.name) for scenario in SCENARIOS for policy in POLICIES))


def verdicts(made: Series) -> dict[str, bool | None]:
    return {figure.name: figure.held for promise in targets.promises(made) for figure in promise.figures}


def test_where_all_is_well_every_target_is_held() -> None:
    assert set(verdicts(whole()).values()) == {True}


@pytest.mark.parametrize(
    ("broken", "missed"),
    [
        (cell("overload_2x", rows=[row("overload_2x", goodput=0.96)]), "goodput / capacity at 2x"),
        (cell("overload_5x", rows=[row("overload_5x", p50_ms=250.0)]), "wait of the admitted at 5x, p50"),
        (cell("overload_5x", rows=[row("overload_5x", in_vain=0.02)]),
         "tokens written that were in no answer on time, 5x"),
        (cell("bursty", late_answers=1), "answers sent after their deadline"),
        (cell("bursty", rows=[row("bursty", refused=0.9, exceeded=0.0011)]),
         "let in, and missed after using a worker, at worst"),
        (cell("bursty", rows=[row("bursty", failed=0.001)]), "failure rate at worst"),
        (cell("noisy_neighbour", figures={"solo_p95_ms": 400.0, "beside_p95_ms": 530.0}),
         "its p95 beside the other / alone"),
        (cell("burst", figures={"back_after_s": 1.5}), "nine tenths of the share on time are back after"),
        (cell("retry_storm", figures={"on_time_before": 1.0, "on_time_after": 0.9, "dispatches": 1.0}),
         "on time afterwards / before"),
    ],
)  # fmt: skip
def test_what_is_broken_is_missed_and_nothing_else(broken: object, missed: str) -> None:
    made = whole()
    made.cells[broken.key] = broken  # type: ignore[attr-defined]
    assert [name for name, held in verdicts(made).items() if not held] == [missed]


def test_a_worker_hurt_on_purpose_is_no_failure_of_the_gateway() -> None:
    made = whole()
    made.cells["recovery weir"] = cell("recovery", rows=[row("recovery", failed=0.2)])
    assert set(verdicts(made).values()) == {True}


def test_a_series_of_one_scenario_has_its_own_targets_only() -> None:
    assert "goodput / capacity at 2x" not in verdicts(series(cell("baseline")))


def test_every_figure_in_which_another_was_better_is_a_loss_and_noise_is_none() -> None:
    made = whole()
    assert losses(made) == []
    made.cells["bursty fifo"] = cell("bursty", "fifo", rows=[row("bursty", on_time_per_s=160.0, p95_ms=119.0)])
    (loss,) = losses(made)
    assert (loss.scenario, loss.what, loss.policy, loss.ours, loss.theirs) == (
        "Bursty, as in traces", "answers on time a second", "bounded FIFO", "150", "160",
    )  # fmt: skip


def test_a_tenant_that_fared_better_elsewhere_is_a_loss() -> None:
    made = whole()
    tenants = [TenantRow("small", 10.0, 0.5, 100.0), TenantRow("big", 10.0, 1.0, 100.0)]
    made.cells["mixed_sizes weir"] = cell("mixed_sizes", rows=[row("mixed_sizes", tenants=tenants)])
    assert {loss.what for loss in losses(made)} == {"small: answered on time"}


def test_the_middle_of_the_burst_is_compared_by_itself() -> None:
    made = whole()
    made.cells["burst haproxy"] = cell("burst", "haproxy", rows=[row("burst"), row("overload_10x", goodput=1.2)])
    assert [(loss.scenario, loss.what) for loss in losses(made)] == [("Overload, 10x", "goodput / capacity")]


def test_the_page_names_every_scenario_policy_and_machine() -> None:
    text = page.page(whole(), [("report-burst", "a burst")])
    assert all(f"### {scenario.title}\n" in text for scenario in SCENARIOS)
    assert all(text.count(f"| {policy.title} |") >= len(SCENARIOS) for policy in POLICIES)
    assert MACHINE in text
    assert "HAProxy version 9" in text
    assert 'srcset="report-burst-dark.svg"' in text


def test_the_page_says_which_stack_it_was_and_whether_it_means_anything() -> None:
    made = whole()
    assert "The embedded stack" in page.page(made, [])
    made.given, made.quick = "http://127.0.0.1:8000, 2 workers x 8 slots x 160 ms", True
    text = page.page(made, [])
    assert "A stack that ran already: http://127.0.0.1:8000" in text
    assert "The embedded stack" not in text
    assert "its figures mean nothing" in text
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))


def test_tables_are_whole_whatever_could_not_be_played() -> None:
    made = whole()
    made.cells["burst fifo"] = cell("burst", "fifo", rows=[], fault="the stack has ended")
    made.cells["baseline fifo"] = cell("baseline", "fifo", believable=False)
    text = page.page(made, [])
    assert "| bounded FIFO | could not be played |" in text
    assert "| bounded FIFO † |" in text
    assert "† The client itself" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) > len(SCENARIOS)
    for table in tables:
        assert {line.count("|") for line in table} == {table[0].count("|")}, table[0]


def test_everything_is_written_and_the_pictures_are_there(tmp_path: Path) -> None:
    made = whole()
    page_of_readme = tmp_path / "README.md"
    page_of_readme.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    writing.publish(made, tmp_path / "results", page_of_readme)
    written = {path.name for path in (tmp_path / "results").iterdir()}
    shown = {
        line.split('"')[1] for line in (tmp_path / "results" / "REPORT.md").read_text().splitlines() if "<img" in line
    }
    assert len(shown) == 5
    assert shown <= written
    assert {name.replace(".svg", "-dark.svg") for name in shown} <= written
    assert kept.read(tmp_path / "results" / "REPORT.json") == made
    text = page_of_readme.read_text()
    assert text == f"before\n{readme.BEGIN}{readme.block(made)}{readme.END}\nafter\n"
    assert readme.put(text, made) == text


def test_a_series_of_two_commits_names_its_machine_once_on_the_page_and_in_the_readme() -> None:
    made = whole()
    made.cells["baseline weir"] = cell("baseline", machine=MACHINE.replace("abc", "def"))
    line = "2 cores of a test; commits def and abc, 2026-01-01"
    assert readme.block(made).count(line) == page.page(made, []).count(line) == 1
    assert readme.block(made).count("2 cores") == 1


def test_a_readme_without_a_place_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("no place\n")
    assert not readme.update(file, whole())
    assert file.read_text() == "no place\n"


def test_the_readme_and_the_page_say_what_the_series_says() -> None:
    """Whoever edits a figure by hand, or forgets to commit one of the three, is told here."""
    measured = RESULTS / "REPORT.json"
    if not measured.exists():
        pytest.skip("the series has not been measured yet")
    found = kept.read(measured)
    assert found is not None, "REPORT.json cannot be read"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.put(text, found) == text
    table = readme.table(found)
    assert table in (RESULTS / "REPORT.md").read_text(encoding="utf-8")
