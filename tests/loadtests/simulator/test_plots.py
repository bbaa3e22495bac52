"""The plots: which there are, what they say, and that the same run draws the same bytes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from loadtests.report.style import DARK, LIGHT, Theme, spread, strokes
from loadtests.scenarios.model import Scenario, parse
from loadtests.simulator.figures import charts, events, smoothed
from loadtests.simulator.plots import Bars, Chart, Curve, Panels, draw
from loadtests.simulator.results import Comparison, compare
from tests.loadtests.simulator.made_up import report

POLICIES = ["weir", "vtc", "round_robin_ttl", "fifo"]
LOADS = [0.5, 0.9, 1.0, 2.0, 10.0]


def scenario(**changed: Any) -> Scenario:
    group = {"arrivals": {"kind": "poisson", "load": 0.4}, "deadline_s": 1}
    workers = {"kind": "slots", "slots": 16, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}
    raw = {
        "title": "A test of plots",
        "duration_s": 40,
        "workers": [workers],
        "tenants": [{"name": "a", **group}, {"name": "b", **group}],
        "policies": POLICIES,
    }
    return parse(raw | changed)


def over_time(**changed: Any) -> Comparison:
    return compare("test", scenario(**changed), [report(name) for name in POLICIES])


def test_latencies_are_drawn_where_there_are_any() -> None:
    series = replace(report().series, latency_p95_s=(None, 0.2, 0.4))
    made = compare("test", scenario(), [report(series=series)])
    latency = next(chart for chart in charts(made) if chart.name == "latency")
    assert isinstance(latency, Chart)
    assert latency.curves[0].ys == (None, 0.2, 0.4)
    assert latency.levels[0].y == 1.0  # the deadline that all share


def over_load(**changed: Any) -> Comparison:
    made = scenario(sweep={"loads": LOADS}, **changed)
    return compare("test", made, [report(name, load) for load in LOADS for name in POLICIES])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plots")
    made = [*draw(list(charts(over_time())), folder, "time"), *draw(list(charts(over_load())), folder, "load")]
    return {path.name: path for path in made}


def test_a_sweep_is_drawn_over_its_loads_and_one_load_over_time() -> None:
    assert [chart.name for chart in charts(over_load())] == ["goodput", "wait", "waste"]
    assert [chart.name for chart in charts(over_time())] == ["on-time", "service", "waste"]


def test_a_sweep_of_one_group_is_drawn_as_what_the_others_notice() -> None:
    made = scenario(sweep={"loads": LOADS, "tenants": ["b"]})
    found = list(charts(compare("test", made, [report("weir", load) for load in LOADS])))
    assert [chart.name for chart in found] == ["neighbours-on-time", "neighbours-latency", "waste"]
    first = found[0]
    assert isinstance(first, Chart)
    assert first.curves[0].ys == (0.8,) * 5  # tenant a's 80 of 100; b's 60 do not count


def test_the_ideal_line_bends_at_capacity() -> None:
    chart = next(charts(over_load()))
    assert isinstance(chart, Chart)
    assert chart.ideal == Curve("ideal", (0.5, 0.9, 1.0, 2.0, 10.0), (0.5, 0.9, 1.0, 1.0, 1.0))


def test_service_adds_up_and_is_told_in_seconds_of_all_workers() -> None:
    panels = next(chart for chart in charts(over_time()) if isinstance(chart, Panels))
    a = panels.panels[0].curves[0]
    assert (a.xs[0], a.ys[0]) == (0, 0)
    assert (a.xs[-1], a.ys[-1]) == (40, pytest.approx(20.0))  # half of the workers for forty seconds
    assert panels.panels[0].remark == "largest gap 225 ms"


def test_waste_is_told_of_available_time() -> None:
    bars = next(chart for chart in charts(over_time()) if isinstance(chart, Bars))
    assert bars.bars[0].useful == pytest.approx(0.95)
    assert bars.bars[0].wasted == pytest.approx(0.05)


def test_phases_and_failures_are_shown_where_they_are() -> None:
    phases = [{"from_s": 10, "until_s": 20, "times": 25}]
    group = {"arrivals": {"kind": "poisson", "load": 0.4, "phases": phases}}
    failures = [{"from_s": 25, "until_s": 60, "workers": 1}]
    workers = {"kind": "slots", "slots": 16, "prefill_tokens_per_s": 1, "s_per_token": 1, "failures": failures}
    found = events(scenario(tenants=[{"name": "a", **group}], workers=[workers]))
    assert [(band.start, band.end, band.label) for band in found] == [
        (10, 20, "10x capacity"),
        (25, 40, "one worker down"),
    ]


def test_a_burst_is_drawn_with_its_edges_where_they_are() -> None:
    phases = [{"from_s": 10, "until_s": 20, "times": 25}]
    made = scenario(tenants=[{"name": "a", "arrivals": {"kind": "poisson", "load": 0.4, "phases": phases}}])
    steps = replace(report().series, on_time=(80,) * 10 + (200,) * 10 + (80,) * 20)
    recovery = next(charts(compare("test", made, [report(series=steps)])))
    assert isinstance(recovery, Chart)
    assert recovery.question == "How soon is all well again after a burst?"
    assert recovery.curves[0].ys == (80.0,) * 10 + (200.0,) * 10 + (80.0,) * 20


def test_every_chart_is_written_for_light_and_for_dark_pages(drawn: dict[str, Path]) -> None:
    for chart in ("time-on-time", "time-service", "time-waste", "load-goodput", "load-wait", "load-waste"):
        for name in (f"{chart}.svg", f"{chart}-dark.svg", f"{chart}.png"):
            assert drawn[name].stat().st_size > 4_000, name


def test_text_in_an_svg_is_text(drawn: dict[str, Path]) -> None:
    text = drawn["load-goodput.svg"].read_text(encoding="utf-8")
    for words in ("weir", "fifo", "ideal", "offered load, multiples of capacity", "How much is still answered in time"):
        assert re.search(rf"<text[^>]*>[^<]*{re.escape(words)}", text), words


def test_the_same_figures_draw_the_same_bytes(drawn: dict[str, Path], tmp_path: Path) -> None:
    for path in draw(list(charts(over_load())), tmp_path, "load"):
        assert path.read_bytes() == drawn[path.name].read_bytes(), path.name


def test_weir_stands_in_front_of_the_others_and_no_two_look_alike() -> None:
    for theme in (LIGHT, DARK):
        made = strokes([*POLICIES, "fifo_ttl", "bounded_fifo", "round_robin_ttl_cancel", "weir_bare"], theme)
        assert len({(stroke.color, stroke.dash) for stroke in made.values()}) == len(made)
        assert max(made, key=lambda name: (made[name].front, made[name].width)) == "weir"


def test_a_baseline_looks_the_same_whatever_stands_beside_it() -> None:
    assert strokes(["weir", "fifo"], LIGHT)["fifo"] == strokes([*POLICIES, "fifo_ttl"], LIGHT)["fifo"]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_every_colour_can_be_told_from_the_page(theme: Theme) -> None:
    for color in (theme.ink, theme.quiet, theme.weir, theme.wasted, *theme.others, *theme.tenants):
        assert contrast(color, theme.paper) >= 2.6, color
    for color in (theme.ink, theme.quiet, theme.weir):
        assert contrast(color, theme.paper) >= 4.5, color


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio."""
    low, high = sorted(luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_names_that_would_touch_move_apart_and_keep_their_order() -> None:
    places = spread([0.5, 0.5, 0.55, 0.9, 1.0], 0.06, 0.0, 1.0)
    assert all(high - low >= 0.06 - 1e-9 for low, high in zip(sorted(places), sorted(places)[1:], strict=False))
    assert places[0] > places[1]  # of equals, the first one stands above
    assert places[2] > places[0]
    assert max(places) <= 1.0
    assert spread([0.1, 0.9], 0.06, 0.0, 1.0) == pytest.approx([0.1, 0.9])


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_names_stay_beside_the_axes_where_all_lines_end_at_its_edge(end: float) -> None:
    places = spread([end] * 4, 0.06, 0.0, 1.0)
    assert min(places) >= 0.0
    assert max(places) <= 1.0
    assert len({round(place / 0.06) for place in places}) == 4


def test_a_mean_over_time_neither_gains_nor_loses_at_the_edges() -> None:
    assert smoothed([2.0, 2.0, 2.0, 2.0]) == (2.0,) * 4
    assert smoothed([0.0, 3.0, 0.0]) == (1.5, 1.0, 1.5)


def test_a_mean_over_time_leaves_a_step_where_it_is() -> None:
    assert smoothed([1.0, 1.0, 9.0, 9.0, 9.0, 1.0], edges=[2, 5]) == (1.0, 1.0, 9.0, 9.0, 9.0, 1.0)
