"""The comparison in the terminal: what stands in it, how numbers are written, and that it fits."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from loadtests.scenarios.model import Scenario, parse
from loadtests.simulator.columns import milliseconds, seconds, share, short
from loadtests.simulator.readings import members
from loadtests.simulator.report import Hints, PolicyReport, Quality
from loadtests.simulator.results import Comparison, compare
from loadtests.simulator.table import page
from tests.loadtests.simulator.made_up import report, tenant

WIDTH = 100
POLICIES = ["weir", "round_robin_ttl_cancel", "fifo"]


def scenario(loads: list[float] | None = None, policies: list[str] = POLICIES) -> Scenario:
    group = {"arrivals": {"kind": "poisson", "load": 2}}
    return parse(
        {
            "title": "A test of tables",
            "duration_s": 40,
            "workers": [{"kind": "slots", "slots": 16, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}],
            "tenants": [{"name": "a", **group}, {"name": "b", **group}],
            "policies": policies,
            **({"sweep": {"loads": loads}} if loads else {}),
        }
    )


def printed(comparison: Comparison) -> str:
    out = io.StringIO()
    Console(file=out, width=WIDTH).print(page(comparison))
    return out.getvalue()


def comparison(*reports: PolicyReport, loads: list[float] | None = None) -> Comparison:
    made = scenario(loads)
    return compare("test", made, [replace(each, load=load) for load in loads or [None] for each in reports])


@pytest.fixture
def worst() -> PolicyReport:
    """The widest figures that are likely."""
    slow = replace(report().wait_s, p50=85.0, p95=1130.0)
    return report("fifo", goodput=0.0513, wait_s=slow, latency_s=slow, dropped_after_admission_share=0.9514)


def test_every_policy_has_its_line_in_the_order_of_the_scenario() -> None:
    text = printed(comparison(report("fifo"), report("weir"), report("round_robin_ttl_cancel")))
    assert text.index("\nweir ") < text.index("\nround_robin_ttl_cancel ") < text.index("\nfifo ")


def test_the_figures_of_a_run_stand_beside_its_policy() -> None:
    text = printed(comparison(report("weir", goodput=0.95)))
    (line,) = [each for each in text.splitlines() if each.startswith("weir ")][:1]
    # of asked, of capacity, wait p50, p95, latency, refused, dropped, wasted, gap (9,000 of 40,000 a second), speed
    assert line.split()[1:] == ["48%", "0.95", "80", "250", "330", "44%", "1.2%", "5.0%", "0.23", "40.0"]


def test_it_fits_into_a_hundred_columns_and_nothing_is_cut(worst: PolicyReport) -> None:
    loads = [0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0]
    text = printed(comparison(report("weir"), report("round_robin_ttl_cancel"), worst, loads=loads))
    assert "…" not in text
    assert "1130s" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_many_loads_become_one_line_a_policy_with_a_column_a_load() -> None:
    loads = [0.5, 1.0, 2.0, 10.0]
    made = scenario(loads)
    results = [report("weir", load, goodput=min(load, 0.9)) for load in loads]
    lines = [line.split() for line in printed(compare("test", made, results)).splitlines()]
    assert ["policy", "0.5x", "1x", "2x", "10x"] in lines
    assert ["weir", "0.50", "0.90", "0.90", "0.90"] in lines


def test_seeds_are_averaged() -> None:
    text = printed(comparison(report("weir", seed=1, goodput=0.9), report("weir", seed=2, goodput=1.0)))
    assert "mean of 2 seeds" in text
    assert " 0.95 " in text


def test_a_figure_that_no_policy_has_takes_no_column() -> None:
    plain = printed(comparison(report("weir"), report("fifo")))
    assert "hints" not in plain
    assert "worth" not in plain
    hinted = report("weir", hints=Hints(given=9, obeyed=8, first_obeyed=8, first_obeyed_admitted=6))
    assert "75%" in printed(comparison(hinted, report("fifo")))


def test_degraded_answers_are_counted_by_their_worth() -> None:
    cut = Quality(5_000.0, 4_200.0, {0: 3_000, 2: 2_500}, 0, 3, 4.5)
    text = printed(comparison(report("weir", quality=cut), report("fifo")))
    assert "5,000" in text
    assert "4,200" in text
    assert "4.50" in text


def test_each_group_of_tenants_has_a_line_of_its_own() -> None:
    lines = [line.split() for line in printed(comparison(report("weir"), report("fifo"))).splitlines()]
    assert ["weir", "a", "80%", "80%", "250", "330", "50%"] in lines
    assert ["b", "60%", "60%", "250", "330", "50%"] in lines


def test_a_tenant_belongs_to_one_group_though_names_begin_alike() -> None:
    raw = scenario().model_dump(mode="json", by_alias=True)
    raw["tenants"] = [raw["tenants"][0] | {"name": name, "count": count} for name, count in (("a", 2), ("a-b", 2))]
    first, second = parse(raw).tenants
    made = report(tenants=tuple(tenant(name) for name in ("a-0", "a-1", "a-b-0", "a-b-1")))
    assert [each.name for each in members(made, first)] == ["a-0", "a-1"]
    assert [each.name for each in members(made, second)] == ["a-b-0", "a-b-1"]


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0%"), (0.0004, "<0.1%"), (0.012, "1.2%"), (0.44, "44%"), (0.9961, "99.6%"), (1.0, "100%"), (1.07, "107%")],
)
def test_shares_keep_a_decimal_where_it_matters(value: float, written: str) -> None:
    assert share(value) == written


def test_times_and_sizes_are_written_as_people_read_them() -> None:
    assert [seconds(value) for value in (0.08, 0.9999, 3.4, 12.34, 170.2)] == [
        "80 ms",
        "1.00 s",
        "3.40 s",
        "12.3 s",
        "170 s",
    ]
    assert [milliseconds(value) for value in (0.0801, 9.1234, 12.5, 113.2)] == ["80", "9,123", "12.5s", "113s"]
    assert [short(value) for value in (0.225, 3.44, 119.4)] == ["0.23", "3.4", "119"]
