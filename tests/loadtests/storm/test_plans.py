"""What a run will do is known before it begins: the same people each time, and never more than may be sent."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.load.arrivals import Ask, asks
from loadtests.scenarios.model import Retries, Turn, find, load_raw, names, parse
from loadtests.storm.scenarios import SCENARIOS, Button, Storm, failures, load
from loadtests.storm.sliders import MAX_RATE_PER_S, MAX_SECONDS, slider, slider_values
from services.cli.errors import LabError
from services.contracts.storm import Slider
from services.runtime.errors import BadInput

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))


def people(storm: Storm, per_s: float = 20.0) -> list[Ask]:
    return list(asks(storm.plan(per_s)))


def values_of(slider: Slider) -> tuple[float, ...]:
    return slider.min, slider.default, slider.max


def corners(scenario: Button) -> list[dict[str, float]]:
    """Every slider at its least, its usual and its most, in every combination."""
    names = [slider.name for slider in scenario.sliders]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*map(values_of, scenario.sliders))]


def test_the_same_wish_meets_the_same_people_at_every_capacity() -> None:
    burst = SCENARIOS["burst"]
    storm, again = (burst.storm(slider_values(burst.sliders, {})) for _ in range(2))
    assert [(ask.at_s, ask.tenant.name) for ask in people(storm)] == [
        (ask.at_s, ask.tenant.name) for ask in people(again)
    ]
    slower = [ask for ask in people(storm, 10.0) if ask.tenant.name == "anna"]
    assert len(slower) < sum(ask.tenant.name == "anna" for ask in people(storm))


def test_a_load_asks_for_as_many_times_capacity_as_it_says() -> None:
    storm = SCENARIOS["burst"].storm({"intensity": 5.0, "seconds": 60.0})
    (begins_s, _), (ends_s, _) = storm.chapters[1:]
    counts = Counter((ask.at_s >= begins_s) + (ask.at_s >= ends_s) for ask in people(storm, 40.0))
    expected = (20 * begins_s, 200 * (ends_s - begins_s), 20 * (60 - ends_s))
    for part, count in enumerate(expected):
        assert abs(counts[part] - count) < 5 * count**0.5  # five standard deviations of a Poisson count


def test_what_may_be_sent_bounds_the_rate_and_who_dominates_still_does() -> None:
    loud = SCENARIOS["noisy_neighbour"].storm({"intensity": 20.0})
    per_s = loud.per_s(5000.0)
    assert loud.max_times * per_s == pytest.approx(MAX_RATE_PER_S)
    shares = {tenant.name: max(step.per_s for step in tenant.steps) for tenant in loud.plan(per_s).tenants}
    assert shares["crowd"] / shares["anna"] == pytest.approx(20 / 0.15)
    assert loud.per_s(10.0) == 10.0


@every_scenario
def test_no_position_of_the_sliders_passes_a_bound(scenario: Button) -> None:
    for values in corners(scenario):
        made = scenario.storm(values)
        assert made.seconds == pytest.approx(values["seconds"])
        assert made.seconds <= MAX_SECONDS
        assert made.seconds + made.client_timeout_s <= 72
        assert made.max_times <= 21
        assert made.per_s(1e6) * made.max_times <= MAX_RATE_PER_S * (1 + 1e-9)
        assert all(end <= made.seconds for _, end in made.troubles)
        assert all(0 <= from_s < made.seconds for from_s, _ in made.chapters)


@every_scenario
def test_a_scenario_says_what_it_does_and_what_to_look_at(scenario: Button):
    assert scenario.caption.endswith(".")
    assert len(scenario.file.watch) >= 2
    assert scenario.sliders[-1].name == "seconds"
    for one in scenario.sliders:
        assert one.min <= one.default <= one.max
        assert one.step > 0


@every_scenario
def test_sliders_at_rest_leave_the_file_as_it_is(scenario: Button) -> None:
    rest, file = scenario.storm(slider_values(scenario.sliders, {})), Storm(scenario.file)
    assert (rest.seconds, rest.chapters, rest.troubles) == (file.seconds, file.chapters, file.troubles)
    mine, files = rest.plan(20.0), file.plan(20.0)
    for turned_one, own in zip(mine.tenants, files.tenants, strict=True):
        assert [step.from_s for step in turned_one.steps] == [step.from_s for step in own.steps]
        assert [step.per_s for step in turned_one.steps] == pytest.approx([step.per_s for step in own.steps], rel=1e-4)
        assert replace(turned_one, steps=own.steps) == own
    assert all(rest.words_at(float(second)) for second in range(int(rest.seconds)))


def test_every_file_that_the_console_can_play_is_a_button():
    having = {name for name in names() if "console" in (load_raw(find(name)).get("stages") or {})}
    assert having == set(SCENARIOS)


def test_what_is_turned_is_the_load_of_those_it_says_in_the_window_it_says() -> None:
    loud = SCENARIOS["noisy_neighbour"].storm({"intensity": 9.0, "seconds": 60.0})
    assert loud.times_at(20.0) == pytest.approx(0.15 + 0.15 + 9.0)
    crowd = loud.plan(1.0).tenants[2]
    assert [step.per_s for step in crowd.steps] == pytest.approx([0.15, 9.0, 0.15])
    assert loud.times_at(59.0) == pytest.approx(0.45)
    assert loud.chapters[1][0] == pytest.approx(12.0)


def test_an_outage_ends_when_it_is_told_to_and_leaves_time_for_what_comes_after() -> None:
    storm = SCENARIOS["retry_storm"]
    assert storm.storm({"outage_s": 2.0, "seconds": 30.0}).troubles == [pytest.approx((6.0, 8.0))]
    long = storm.storm({"outage_s": 10.0, "seconds": 10.0})
    assert long.troubles[0][1] == long.chapters[-1][0] == pytest.approx(6.0)


def test_every_other_slider_turns_what_it_says() -> None:
    (slow,) = failures(SCENARIOS["slow_worker"].storm({"slow_factor": 17.0}).file)
    assert slow.factor == 17
    (tenant, *_) = (
        SCENARIOS["retry_storm"].storm({"deadline_ms": 5000, "retries": 5, "obey_hints": 1}).plan(1.0).tenants
    )
    assert (tenant.deadline_ms, tenant.client_timeout_ms, tenant.retries) == (
        5000,
        5000,
        Retries(attempts=5, wait="hint"),
    )
    assert SCENARIOS["burst"].storm({"leaving": 35.0}).leaving == 0.35


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
        Storm(parse(raw))


def test_a_slider_for_one_window_leaves_the_other_phases_as_they_are():
    phases = [{"from_s": 5, "until_s": 10, "times": 2}, {"from_s": 10, "until_s": 20, "times": 3}]
    tenant = {**TENANT, "arrivals": {"kind": "poisson", "load": 0.5, "phases": phases}}
    windows = [{"name": "peak", "from_s": 10, "until_s": 20}]
    raw = {"title": "T", "duration_s": 30, "workers": [WORKER], "tenants": [tenant], "windows": windows}
    button = Button("b", raw, (Turn(name="intensity", during="peak"),), parse(raw), ())
    storm = button.storm({"intensity": 6.0, "seconds": 60.0})
    assert [storm.times_at(at) for at in (0.0, 10.0, 20.0, 40.0)] == pytest.approx([0.5, 1.0, 6.0, 0.5])
    everywhere = Button("b", raw, (Turn(name="intensity"),), parse(raw), ()).storm({"intensity": 1.0})
    assert [everywhere.times_at(at) for at in (0.0, 5.0, 10.0, 20.0)] == pytest.approx([1.0, 2.0, 3.0, 1.0])


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
        values = slider_values(scenario.sliders, wish)
    except BadInput:
        known = {slider.name: slider for slider in scenario.sliders}
        assert any(name not in known or not known[name].min <= wish[name] <= known[name].max for name in wish)
        return
    assert set(values) == {slider.name for slider in scenario.sliders}
    assert all(slider.min <= values[slider.name] <= slider.max for slider in scenario.sliders)
    scenario.storm(values)


@pytest.mark.parametrize("value", [0.5, 2, -1])
def test_a_switch_is_on_or_off(value: float):
    with pytest.raises(BadInput, match="obey_hints"):
        slider_values(SCENARIOS["retry_storm"].sliders, {"obey_hints": value})


@pytest.mark.parametrize(
    "change",
    [
        {"duration_s": 61},
        {"duration_s": 9},
        {"cache_silent": [{"from_s": 5, "until_s": 31}]},
        {"tenants": [{**TENANT, "client_timeout_s": 1}]},
        {"tenants": [{**TENANT, "deadline_s": 20}]},
        {"tenants": [{**TENANT, "retries": {"attempts": 6, "wait": "hint"}}]},
    ],
)
def test_a_storm_that_passes_a_bound_cannot_be_made(change: dict[str, Any]) -> None:
    raw = {"title": "T", "duration_s": 30, "workers": [WORKER], "tenants": [TENANT]}
    Storm(parse(raw))
    with pytest.raises(LabError):
        Storm(parse({**raw, **change}))
    with pytest.raises(LabError):
        Storm(parse(raw), leaving=1.5)
