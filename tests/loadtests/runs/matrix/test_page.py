"""The page says what was measured: targets held or missed, every loss, and the same figures in the README."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import msgspec
import pytest

from loadtests.paths import RESULTS, ROOT
from loadtests.report.figure import at_least
from loadtests.runs.matrix import kept, page, readme, targets, writing
from loadtests.runs.matrix.cases import SERIES
from loadtests.runs.matrix.cell import Cell, Series, TenantRow
from loadtests.runs.matrix.losses import losses
from loadtests.runs.matrix.simulated import PolicyRow, Simulated
from loadtests.runs.matrix.subjects import SUBJECTS
from tests.loadtests.runs.matrix.made import MACHINE, case, cases, cell, row, series

CASES = cases()


def whole() -> Series:
    return series(*(cell(name, subject.name) for name in SERIES for subject in SUBJECTS))


def verdicts(made: Series) -> dict[tuple[str, str], bool | None]:
    promises = targets.promises(made, CASES)
    return {(title, figure.name): figure.held for title, figures in promises.items() for figure in figures}


def test_where_all_is_well_every_target_is_held() -> None:
    found = verdicts(whole())
    assert set(found.values()) == {True}
    assert {title for title, _ in found} == {
        "All scenarios", *(each.title for each in CASES.values() if each.scenario.must)
    }  # fmt: skip


def late(name: str, share: float) -> Cell:
    """The first tenant is answered on time so rarely."""
    tenants = [TenantRow(each, 10.0, share if at == 0 else 1.0, 110.0, 100.0) for at, each in
               enumerate(CASES[name].tenants)]  # fmt: skip
    return cell(name, rows=[msgspec.structs.replace(row(name), tenants=tenants)])


def documents(window: str, **more: float) -> Cell:
    """One window of a scenario that has several."""
    usual = {"worth_per_s": 150.0, "with_passages": 1.0}
    return cell("degradation_documents", rows=[row(window, **{**usual, **more})])


@pytest.mark.parametrize(
    ("broken", "missed"),
    [
        (cell("overload_2x", rows=[row("overload_2x", goodput=0.96)]), ("Overload, 2x", "goodput / capacity")),
        (cell("overload_5x", rows=[row("overload_5x", p50_ms=250.0)]), ("Overload, 5x", "wait of the admitted, p50")),
        (cell("overload_5x", rows=[row("overload_5x", answers_p95_ms=401.0)]),
         ("Overload, 5x", "p95 of the answers")),
        (cell("overload_5x", rows=[row("overload_5x", in_vain=0.02)]),
         ("Overload, 5x", "tokens written that were in no answer on time")),
        (cell("overload_10x", rows=[row("overload_10x", refused_p99_ms=51.0)]), ("Overload, 10x", "refusals p99")),
        (cell("overload_10x", rows=[row("overload_10x", hinted=0.99)]),
         ("Overload, 10x", "refusals that say when to come back")),
        (cell("bursty", figures={"late_answers": 1.0}), ("All scenarios", "answers sent after their deadline")),
        (cell("retry_storm", figures={"hintless": 1.0}), ("All scenarios", "invited retries without a hint")),
        (cell("bursty", rows=[row("bursty", refused=0.9, exceeded=0.0011)]),
         ("All scenarios", "admitted, and missed after using a worker, worst run")),
        (cell("bursty", rows=[row("bursty", failed=0.001)]), ("All scenarios", "failure rate, worst run")),
        (cell("bursty", figures={"wasted": 0.011}),
         ("All scenarios", "wasted time of the workers' slots, worst run")),
        (cell("bursty", figures={"failed_tries": 1.0}), ("All scenarios", "attempts that failed")),
        (cell("bursty", figures={"miscounted": 1.0}),
         ("All scenarios", "attempts that router and client count differently")),
        (cell("bursty", client_late=0.06), ("All scenarios", "requests that the client itself sent late, worst run")),
        (cell("noisy_neighbour", figures={"small_alone_p95_ms": 70.0}),
         ("A tenant beside one that offers fifty times capacity", "small: p95 / alone")),
        (late("narrow_neighbour", 0.98),
         ("Four slots, and a tenant at twenty times the capacity", "light: answered on time")),
        (cell("burst", figures={"back_after_s": 1.5}),
         ("Ten times capacity for twenty seconds", "nine tenths of the share on time are back after")),
        (cell("retry_storm", figures={"after_over_before": 0.9}),
         ("Twenty seconds of outage, and clients that retry at once", "on time afterwards / before")),
        (cell("outage_killed", figures={"dispatches": 1.2}),
         ("Every worker killed, and restarted four seconds later", "requests to workers, for each of a client's")),
        (documents("at_2x", on_time=0.84), ("Degradation, with documents", "answered on time")),
        (documents("at_2x", with_passages=0.4),
         ("Degradation, with documents", "answers on time that were given passages")),
        (documents("at_3x", worth_per_s=139.0),
         ("Degradation, with documents", "answers on time in worth / without degradation")),
    ],
)  # fmt: skip
def test_what_is_broken_is_missed_and_nothing_else(broken: Cell, missed: tuple[str, str]) -> None:
    made = whole()
    made.cells[broken.key] = broken
    assert [name for name, held in verdicts(made).items() if not held] == [missed]


def test_the_burst_is_compared_with_the_baseline() -> None:
    made = whole()
    made.cells["baseline weir"] = cell("baseline", rows=[row("baseline", p95_ms=70.0)])
    missed = [(title, name) for (title, name), held in verdicts(made).items() if not held]
    assert missed == [("Ten times capacity for twenty seconds", "p95 of the admitted / the baseline's")]


def test_clients_that_obey_hints_are_compared_with_those_of_a_run_in_which_all_do() -> None:
    names = ("hints_obeyed", "early_retries")
    played = {name: case(name) for name in names}
    for honest, held in ((0.4, True), (0.39, False)):
        rows = [row(window, goodput=1.2, honest_on_time=honest) for window in ("early_retries", "the_storm", "after")]
        obeyed = [row(window, goodput=1.2, honest_on_time=0.4) for window in ("hints_obeyed", "the_storm", "after")]
        made = series(cell(names[0], rows=obeyed), cell(names[1], rows=rows))
        found = {figure.name: figure.held for figure in targets.promises(made, played)[played[names[1]].title]}
        assert found.pop("on time of those that obey hints / where all do") is held
        assert set(found.values()) == {True}
        alone = targets.promises(series(made.cells["early_retries weir"]), played)[played[names[1]].title]
        assert "on time of those that obey hints / where all do" not in {figure.name for figure in alone}


def test_a_worker_that_fails_on_purpose_is_no_failure_of_the_gateway() -> None:
    made = whole()
    hurt = {"wasted": 0.5, "failed_tries": 9.0, "miscounted": 9.0}
    made.cells["recovery weir"] = cell("recovery", rows=[row("recovery", failed=0.2)], figures=hurt)
    assert set(verdicts(made).values()) == {True}


def test_a_series_of_one_scenario_has_its_own_targets_only() -> None:
    assert {title for title, _ in verdicts(series(cell("baseline")))} == {"All scenarios"}


def test_without_what_it_is_compared_with_a_target_is_left_out() -> None:
    alone = series(cell("degradation_documents"))
    assert not [name for _, name in verdicts(alone) if "without degradation" in name]


def test_what_was_cut_is_told_where_something_was() -> None:
    made = whole()
    assert "mean level" not in page.page(made, CASES, [])
    made.cells["degradation weir"] = cell("degradation", rows=[row("degradation", worth_per_s=99.5, mean_level=1.25)])
    text = " ".join(page.page(made, CASES, []).split())
    assert "each by what its level is worth: Weir 99.5" in text
    assert "Mean level of the answers on time: Weir 1.2" in text


def test_every_figure_in_which_another_was_better_is_a_loss_and_noise_is_none() -> None:
    made = whole()
    assert losses(made, CASES) == []
    made.cells["bursty fifo"] = cell("bursty", "fifo", rows=[row("bursty", on_time_per_s=160.0, p95_ms=119.0)])
    (loss,) = losses(made, CASES)
    assert (loss.scenario, loss.what, loss.subject, loss.ours, loss.theirs) == (
        "Bursty, as in traces", "answers on time a second", "bounded FIFO", "150", "160",
    )  # fmt: skip


def test_a_gateway_that_answers_nothing_is_not_the_faster_one() -> None:
    made = whole()
    nothing = row("bursty", p50_ms=0.0, p95_ms=0.0, answers_per_s=0.0, on_time_per_s=0.0, goodput=0.0)
    made.cells["bursty haproxy"] = cell("bursty", "haproxy", rows=[nothing])
    assert losses(made, CASES) == []


def test_a_tenant_that_fared_better_elsewhere_is_a_loss() -> None:
    made = whole()
    made.cells["mixed_sizes weir"] = late("mixed_sizes", 0.5)
    assert {loss.what for loss in losses(made, CASES)} == {"small: answered on time"}


def test_a_window_of_a_scenario_is_compared_by_itself() -> None:
    made = whole()
    rows = [row("burst", CASES["burst"].tenants), row("overload_10x", CASES["burst"].tenants, goodput=1.2)]
    made.cells["burst haproxy"] = cell("burst", "haproxy", rows=rows)
    assert [(loss.scenario, loss.what) for loss in losses(made, CASES)] == [
        ("Ten times capacity for twenty seconds: overload_10x", "goodput / capacity")
    ]


def test_what_the_simulator_found_stands_beside_what_processes_did() -> None:
    made = whole()
    made.simulated["mixed_sizes"] = Simulated(
        [PolicyRow("weir", None, 0.5, 1.0, 120.0, 300.0, 0.5, 0.0, {"small": 0.4, "big": 0.9}),
         PolicyRow("fifo", None, 0.0, 0.0, None, None, 0.0, 1.0, {"small": 0.0, "big": 0.0})],
        [at_least("goodput / capacity", 0.9, 0.97)],
    )  # fmt: skip
    text = page.page(made, CASES, [])
    assert "| weir | 50.0 % | 1.00 | 120 ms | 300 ms | 50.0 % | 0 % | 40.0 % | 90.0 % |" in text
    assert "| fifo | 0 % | 0.00 | – | – | 0 % | 100.0 % | 0 % | 0 % |" in text
    assert verdicts(made)["Mixed sizes, simulated", "goodput / capacity"] is False
    assert kept.encoded(made) == kept.encoded(msgspec.json.decode(kept.encoded(made), type=Series))


def test_the_promises_of_the_simulator_have_a_table_with_the_worst_seed_and_count_as_targets() -> None:
    made = whole()
    before = page.held(chain.from_iterable(targets.promises(made, CASES).values()))
    made.promised["hints"] = {"weir": {"hints_admitted": [0.9, 0.7]}}
    made.promised["equal at 20x"] = {
        "weir": {"goodput": [1.0, 0.9], "regret": [0.0, 0.0]}, "fifo": {"goodput": [0.0, 0.01]}
    }  # fmt: skip
    text = page.page(made, CASES, [])
    assert "| first obeyed hints admitted, hints | 80.00 % (70.00 %) | ≥ 80.00 % | **missed** | –" in text
    assert "| goodput / capacity, equal at 20x | 0.95 (0.90) | ≥ 0.93 | **missed** | 0.01 (0) |" in text
    assert "goodput / capacity, equal at 2x" not in text, "what needs a case that was not played is left out"
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith(("|", "<", " ")))
    held, of = (int(word) for word in before.split()[::2][:2])
    assert f"{held} of {of + 4} targets held" in text, "what a case has no figure for is missed"
    assert kept.encoded(made) == kept.encoded(msgspec.json.decode(kept.encoded(made), type=Series))


def test_only_other_programs_are_compared_by_their_processor_time() -> None:
    made = whole()
    made.cells["baseline weir"] = cell("baseline", gateway_ms=1.0)
    found = losses(made, CASES)
    assert {loss.what for loss in found} == {"processor time of the gateway, a request"}
    assert {loss.subject for loss in found} == {subject.title for subject in SUBJECTS if not subject.is_router}


def test_the_page_names_every_scenario_subject_and_machine() -> None:
    text = page.page(whole(), CASES, [("matrix-burst", "a burst")])
    assert all(f"### {each.title}\n" in text for each in CASES.values())
    assert all(text.count(f"| {subject.title} |") >= len(SERIES) for subject in SUBJECTS)
    assert MACHINE in text
    assert "HAProxy version 9" in text
    assert 'srcset="matrix-burst-dark.svg"' in text


def test_the_page_says_which_stack_it_was_and_whether_it_means_anything() -> None:
    made = whole()
    assert "Simulated workers" in page.page(made, CASES, [])
    made.given, made.quick = "http://127.0.0.1:8000, 2 workers x 8 slots x 160 ms", True
    text = page.page(made, CASES, [])
    assert "A stack that was already running: http://127.0.0.1:8000" in text
    assert "Simulated workers" not in text
    assert "its figures mean nothing" in text
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))


def test_tables_are_whole_whatever_could_not_be_played() -> None:
    made = whole()
    made.cells["burst fifo"] = cell("burst", "fifo", rows=[], fault="the stack has ended")
    made.cells["baseline fifo"] = cell("baseline", "fifo", believable=False)
    text = page.page(made, CASES, [])
    assert "| bounded FIFO | could not be played |" in text
    assert "| bounded FIFO † |" in text
    assert "† The client itself" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) > len(SERIES)
    for table in tables:
        assert {line.count("|") for line in table} == {table[0].count("|")}, table[0]


def served(subject: str, premium: int, regular: int) -> Cell:
    tenants = [TenantRow(name, 9.0, 1.0, 110.0, 100.0, tokens) for name, tokens in
               (("premium", premium), ("regular", regular))]  # fmt: skip
    return cell("two_frontends", subject, [msgspec.structs.replace(row("two_frontends"), tenants=tenants)])


@pytest.mark.parametrize(
    ("premium", "regular", "held"), [(255, 65, True), (163, 162, False), (378, 100, False), (422, 100, False)]
)
def test_two_routers_share_by_weight_within_a_twentieth(premium: int, regular: int, held: bool) -> None:
    made = case("two_frontends")
    found = targets.promises(series(served("weir", premium, regular)), {made.name: made})[made.title]
    assert len(found) == 2
    assert all(figure.held for figure in found) is held


def test_a_scenario_has_a_page_of_its_own_with_what_each_tenant_was_served(tmp_path: Path) -> None:
    made = series(*whole().cells.values(), served("weir", 255, 65), served("no_exchange", 163, 162))
    writing.publish_own(made, case("two_frontends"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"two-frontends.md", "two-frontends.json"}
    text = (tmp_path / "two-frontends.md").read_text()
    assert f'Written by `make matrix ARGS="two_frontends --own"`, on {MACHINE}.' in text
    assert "| Weir | 255 | 65 | 3.92 to 1 |" in text
    assert "| no exchange | 163 | 162 | 1.01 to 1 |" in text
    assert "Overload" not in text
    assert "bounded FIFO" not in text
    kept_of_it = kept.read(tmp_path / "two-frontends.json")
    assert kept_of_it is not None
    assert {each.scenario for each in kept_of_it.cells.values()} == {"two_frontends"}


def test_everything_is_written_and_the_pictures_are_there(tmp_path: Path) -> None:
    made = whole()
    page_of_readme = tmp_path / "README.md"
    page_of_readme.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    writing.publish(made, CASES, tmp_path / "results", page_of_readme)
    written = {path.name for path in (tmp_path / "results").iterdir()}
    shown = {
        line.split('"')[1] for line in (tmp_path / "results" / "matrix.md").read_text().splitlines() if "<img" in line
    }
    assert len(shown) == 6
    assert shown <= written
    assert {name.replace(".svg", "-dark.svg") for name in shown} <= written
    assert kept.read(tmp_path / "results" / "matrix.json") == made
    text = page_of_readme.read_text()
    assert text == f"before\n{readme.BEGIN}{readme.block(made)}{readme.END}\nafter\n"
    assert readme.put(text, made) == text


def test_a_series_of_two_commits_names_its_machine_once_on_the_page_and_in_the_readme() -> None:
    made = whole()
    made.cells["half weir"] = cell("half", machine=MACHINE.replace("abc", "def"))
    line = "2 cores of a test; commits def and abc, 2026-01-01"
    assert readme.block(made).count(line) == page.page(made, CASES, []).count(line) == 1
    assert readme.block(made).count("2 cores") == 1


def test_a_readme_without_a_place_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("no place\n")
    assert not readme.update(file, whole())
    assert file.read_text() == "no place\n"


def test_the_readme_and_the_page_say_what_the_series_says() -> None:
    """Whoever edits a figure by hand, or forgets to commit one of the three, is told here."""
    measured = RESULTS / "matrix.json"
    if not measured.exists():
        pytest.skip("the matrix has not been measured yet")
    found = kept.read(measured)
    assert found is not None, "matrix.json cannot be read"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.put(text, found) == text
    table = readme.table(found)
    assert table in (RESULTS / "matrix.md").read_text(encoding="utf-8")
