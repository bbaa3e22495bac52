"""What a run will do is known before it begins: the same people each time, and never more than may be sent."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.scenarios.model import Turn, find, load_raw, names, parse
from loadtests.storm.arrivals import arrivals, scale
from loadtests.storm.plan import MOST_RATE_PER_S, MOST_SECONDS, Chapter, Load, Manners, Plan, Step, Trouble
from loadtests.storm.scenarios import SCENARIOS, Scenario, load, plan_of
from loadtests.storm.sliders import slider, turned
from services.cli.errors import LabError
from services.contracts.storm import Slider
from services.runtime.errors import BadInput

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))


def plan(*loads: Load, seconds: float = 60.0) -> Plan:
    return Plan(seconds, loads, (Chapter(0.0, "load"),))


def steady(tenant: str, times: float = 1.0) -> Load:
    return Load(tenant, (Step(0.0, times),))


def values_of(slider: Slider) -> tuple[float, ...]:
    return slider.min, slider.default, slider.max


def corners(scenario: Scenario) -> list[dict[str, float]]:
    """Every slider at its least, its usual and its most, in every combination."""
    names = [slider.name for slider in scenario.sliders]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*map(values_of, scenario.sliders))]


def test_the_same_wish_meets_the_same_people():
    burst = SCENARIOS["burst"].plan(turned(SCENARIOS["burst"].sliders, {}))
    assert list(arrivals(burst, 20.0)) == list(arrivals(burst, 20.0))
    assert list(arrivals(burst, 20.0)) != list(arrivals(burst, 20.0, seed=2))


def test_one_more_tenant_changes_nobody_elses_arrivals():
    alone = list(arrivals(plan(steady("anna")), 5.0))
    both = list(arrivals(plan(steady("anna"), steady("ben")), 5.0))
    assert [one for one in both if one.tenant == "anna"] == alone
    assert [one.at_s for one in both] == sorted(one.at_s for one in both)


def test_a_step_asks_for_as_many_times_capacity_as_it_says():
    load = Load("anna", (Step(0.0, 0.5), Step(20.0, 5.0), Step(40.0, 0.5)))
    counts = Counter(int(one.at_s // 20) for one in arrivals(plan(load), 50.0))
    for third, expected in enumerate((500, 5000, 500)):
        assert abs(counts[third] - expected) < 5 * expected**0.5  # five standard deviations of a Poisson count


def test_a_tenant_is_silent_before_its_first_step():
    late = Load("crowd", (Step(30.0, 1.0),))
    assert min(one.at_s for one in arrivals(plan(late), 10.0)) >= 30.0
    assert late.times_at(29.9) == 0.0


def test_what_may_be_sent_bounds_the_rate_and_who_dominates_still_does():
    loud = plan(steady("quiet", 0.15), steady("crowd", 20.0))
    scaled = scale(loud, capacity_per_s=5000.0)
    assert scaled.capped
    assert loud.most_times * scaled.per_s == pytest.approx(MOST_RATE_PER_S)
    assert scale(loud, capacity_per_s=10.0).per_s == 10.0
    assert not scale(loud, capacity_per_s=10.0).capped


@every_scenario
def test_no_position_of_the_sliders_passes_a_bound(scenario: Scenario):
    for values in corners(scenario):
        made = scenario.plan(values)
        assert made.seconds == values["seconds"] <= MOST_SECONDS
        assert made.most_times <= 21
        assert scale(made, 1e6).per_s * made.most_times <= MOST_RATE_PER_S * (1 + 1e-9)
        assert all(trouble.until_s <= made.seconds for trouble in made.troubles)
        assert all(0 <= chapter.from_s < made.seconds for chapter in made.chapters)


@every_scenario
def test_a_scenario_says_what_it_does_and_what_to_look_at(scenario: Scenario):
    assert scenario.caption.endswith(".")
    assert len(scenario.watch) >= 2
    assert scenario.sliders[-1].name == "seconds"
    for one in scenario.sliders:
        assert one.min <= one.default <= one.max
        assert one.step > 0


@every_scenario
def test_what_is_going_on_has_a_name_at_every_second(scenario: Scenario):
    made = scenario.plan(turned(scenario.sliders, {}))
    assert all(made.words_at(float(second)) for second in range(int(made.seconds)))


def test_everybody_leaves_within_a_minute_and_a_quarter():
    for scenario in SCENARIOS.values():
        for values in corners(scenario):
            made = scenario.plan(values)
            assert made.seconds + made.manners.patience_s <= 72


@every_scenario
def test_sliders_at_rest_leave_the_file_as_it_is(scenario: Scenario):
    rest, file = scenario.plan(turned(scenario.sliders, {})), scenario.plan({})
    assert (rest.seconds, rest.chapters, rest.question, rest.manners) == (
        file.seconds, file.chapters, file.question, file.manners,
    )  # fmt: skip
    assert rest.troubles == file.troubles
    for mine, files in zip(rest.loads, file.loads, strict=True):
        assert [step.from_s for step in mine.steps] == [step.from_s for step in files.steps]
        assert [step.times for step in mine.steps] == pytest.approx([step.times for step in files.steps], rel=1e-4)


def test_every_file_that_the_console_can_play_is_a_button():
    having = {name for name in names() if "console" in (load_raw(find(name)).get("stages") or {})}
    assert having == set(SCENARIOS)


def test_what_is_turned_is_the_load_of_those_it_says_in_the_window_it_says():
    loud = SCENARIOS["noisy_neighbour"].plan({"intensity": 9.0, "seconds": 60.0})
    assert {load.tenant: load.times_at(20.0) for load in loud.loads} == pytest.approx(
        {"anna": 0.15, "ben": 0.15, "crowd": 9.0}
    )
    assert loud.loads[2].times_at(59.0) == pytest.approx(0.15)
    assert loud.chapters[1].from_s == pytest.approx(12.0)


def test_an_outage_ends_when_it_is_told_to_and_leaves_time_for_what_comes_after():
    storm = SCENARIOS["retry_storm"]
    (short,) = storm.plan({"outage_s": 2.0, "seconds": 30.0}).troubles
    assert (short.from_s, short.until_s) == pytest.approx((6.0, 8.0))
    long = storm.plan({"outage_s": 10.0, "seconds": 10.0})
    assert long.troubles[0].until_s == pytest.approx(6.0)
    assert long.chapters[-1].from_s == pytest.approx(6.0)


TENANT: dict[str, Any] = {"name": "a", "arrivals": {"kind": "poisson", "load": 1}, "deadline_s": 2}
WORKER = {"kind": "slots", "slots": 4, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tenants": [TENANT, {**TENANT, "name": "b", "deadline_s": 3}]}, "the same deadline"),
        ({"tenants": [{**TENANT, "arrivals": {"kind": "closed", "clients": 3}}]}, "poisson arrivals"),
        ({"tenants": [{**TENANT, "arrivals": {"kind": "poisson", "rate_per_s": 3}}]}, "write load"),
        ({"tenants": [{**TENANT, "prompt_tokens": {"kind": "uniform", "low": 1, "high": 2}}]}, "are numbers"),
        ({"workers": [{**WORKER, "failures": [{"from_s": 1, "until_s": 2}]}]}, "slows one worker"),
    ],
)
def test_a_file_that_the_console_cannot_play_is_told(change: dict[str, Any], told: str):
    raw = {"title": "T", "duration_s": 30, "workers": [WORKER], "tenants": [TENANT], **change}
    with pytest.raises(LabError, match=told):
        plan_of(parse(raw), (), {})


def test_a_file_without_sliders_is_no_button():
    with pytest.raises(LabError, match=r"sliders under stages\.console"):
        load("sweep")


def test_a_slider_without_usual_bounds_says_its_own():
    assert slider(Turn(name="retries", high=2)).max == 2
    with pytest.raises(LabError, match="title, low, high"):
        slider(Turn(name="intensity", low=1, high=2))


NUMBERS = st.one_of(st.floats(), st.integers(-(10**9), 10**9).map(float))


@given(st.sampled_from(list(SCENARIOS)), st.dictionaries(st.text(max_size=12), NUMBERS, max_size=4), NUMBERS)
def test_a_wish_is_granted_within_the_sliders_or_refused(name: str, wish: dict[str, float], value: float):
    scenario = SCENARIOS[name]
    wish = {**wish, "intensity": value}
    try:
        values = turned(scenario.sliders, wish)
    except BadInput:
        known = {slider.name: slider for slider in scenario.sliders}
        assert any(name not in known or not known[name].min <= wish[name] <= known[name].max for name in wish)
        return
    assert set(values) == {slider.name for slider in scenario.sliders}
    assert all(slider.min <= values[slider.name] <= slider.max for slider in scenario.sliders)
    scenario.plan(values)


@pytest.mark.parametrize("value", [0.5, 2, -1])
def test_a_switch_is_on_or_off(value: float):
    with pytest.raises(BadInput, match="obey_hints"):
        turned(SCENARIOS["retry_storm"].sliders, {"obey_hints": value})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Plan(61.0, (), ()),
        lambda: Plan(9.0, (), ()),
        lambda: Plan(10.0, (), (), troubles=(Trouble("cache", 5.0, 11.0),)),
        lambda: Plan(10.0, (), (), troubles=(Trouble("cache", 5.0, 5.0),)),
        lambda: Manners(deadline_s=2.0, patience_s=1.0),
        lambda: Manners(deadline_s=20.0, patience_s=20.0),
        lambda: Manners(retries=6),
        lambda: Manners(leaving_share=1.5),
    ],
)
def test_a_plan_that_passes_a_bound_cannot_be_made(wrong):
    with pytest.raises(ValueError, match=r"\w"):
        wrong()
