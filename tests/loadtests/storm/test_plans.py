"""What a run will do is known before it begins: the same people each time, and never more than may be sent."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.storm.arrivals import arrivals, scale
from loadtests.storm.plan import MOST_RATE_PER_S, MOST_SECONDS, Chapter, Load, Manners, Plan, Step, Trouble
from loadtests.storm.scenarios import SCENARIOS, Scenario
from loadtests.storm.sliders import turned
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
    for slider in scenario.sliders:
        assert slider.min <= slider.default <= slider.max
        assert slider.step > 0


@every_scenario
def test_what_is_going_on_has_a_name_at_every_second(scenario: Scenario):
    made = scenario.plan(turned(scenario.sliders, {}))
    assert all(made.words_at(float(second)) for second in range(int(made.seconds)))


def test_everybody_leaves_within_a_minute_and_a_quarter():
    for scenario in SCENARIOS.values():
        for values in corners(scenario):
            made = scenario.plan(values)
            assert made.seconds + made.manners.patience_s <= 72


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
