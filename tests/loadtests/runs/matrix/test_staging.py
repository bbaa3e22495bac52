"""A scenario's file as real processes play it: the same worker time, in steps that a machine can keep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from loadtests.cluster.stand import Shape
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.plan import PROMPT_TOKENS, Step
from loadtests.runs.matrix.staging import LEAVES_AFTER_MS, SPREAD, names_of, shape_of, tenants_of
from loadtests.scenarios.distributions import constant
from loadtests.scenarios.model import Retries, Scenario, parse
from loadtests.scenarios.stages import retimed
from services.cli.errors import LabError
from tests.loadtests.runs.matrix.made import case

CAPACITY = Capacity(200.0, 1600.0, Quantiles())
WORKERS = {"kind": "slots", "count": 2, "slots": 8, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}


def scenario(*tenants: dict[str, Any], **more: Any) -> Scenario:
    usual = {"prompt_tokens": 100, "completion_tokens": 50, "max_tokens": 50, "deadline_s": 1}
    return parse(
        {"title": "T", "duration_s": 30, "workers": [WORKERS], "tenants": [usual | each for each in tenants]} | more
    )


def test_a_request_holds_its_slot_as_long_as_the_file_says() -> None:
    made = shape_of(scenario({"name": "a", "arrivals": {"kind": "poisson", "load": 1}}))
    assert (made.workers, made.slots, made.step_ms, made.answer_tokens) == (2, 8, 10.0, 8)
    assert made.service_s == 0.08  # 100 / 2500 + 50 * 0.0008


def test_a_load_is_a_multiple_of_the_capacity_in_worker_time() -> None:
    small = {"name": "small", "count": 4, "arrivals": {"kind": "poisson", "load": 0.5}}
    big = {"name": "big", "prompt_tokens": 1000, "completion_tokens": 500, "arrivals": {"kind": "poisson", "load": 2}}
    *smalls, large = tenants_of(scenario(small, big), CAPACITY)
    assert [tenant.name for tenant in smalls] == ["small-1", "small-2", "small-3", "small-4"]
    spread = math.exp(SPREAD**2 / 2)
    assert sum(tenant.steps[0].per_s for tenant in smalls) * 8 * spread == pytest.approx(0.5 * 1600)
    assert large.steps[0].per_s * 80 * spread == pytest.approx(2 * 1600)
    assert names_of(scenario(small, big)) == ("small-1", "small-2", "small-3", "small-4", "big")


def test_phases_become_steps_of_the_rate() -> None:
    phases = [{"from_s": 4, "until_s": 10, "times": 10}, {"from_s": 10, "until_s": 12, "times": 0}]
    (tenant,) = tenants_of(
        scenario({"name": "a", "arrivals": {"kind": "poisson", "rate_per_s": 100, "phases": phases}}), CAPACITY
    )
    assert tenant.steps == (Step(0, 100), Step(4, 1000), Step(10, 0), Step(12, 100))


def test_on_and_off_become_steps_too_and_a_shorter_run_has_them_all_in_less_time() -> None:
    made = scenario({"name": "a", "arrivals": {"kind": "on_off", "rate_per_s": 100, "on_s": 2, "off_s": 6}})
    (tenant,), (hurried,) = tenants_of(made, CAPACITY), tenants_of(retimed(made, lambda moment: moment / 2), CAPACITY)
    assert tenant.steps[:4] == (Step(0, 400), Step(2, 0), Step(8, 400), Step(10, 0))
    assert hurried.steps[:3] == (Step(0, 400), Step(1, 0), Step(4, 400))
    assert len(hurried.steps) == len(tenant.steps)


def test_clients_leave_a_little_after_their_deadline_or_when_the_file_says() -> None:
    arrivals = {"kind": "poisson", "load": 1}
    usual, hurried = tenants_of(
        scenario({"name": "a", "arrivals": arrivals}, {"name": "b", "arrivals": arrivals, "client_timeout_s": 0.4}),
        CAPACITY,
    )
    assert (usual.deadline_ms, usual.client_timeout_ms) == (1000, 1000 + LEAVES_AFTER_MS)
    assert hurried.client_timeout_ms == 400


@pytest.mark.parametrize(
    ("retries", "made"),
    [
        ({}, Retries()),
        ({"attempts": 3, "wait": "immediate"}, Retries(attempts=3, wait="immediate")),
        ({"attempts": 2, "wait": "hint"}, Retries(attempts=2, wait="hint")),
    ],
)
def test_clients_have_the_manners_of_the_file(retries: dict[str, Any], made: Retries) -> None:
    (tenant,) = tenants_of(
        scenario({"name": "a", "arrivals": {"kind": "poisson", "load": 1}, "retries": retries}), CAPACITY
    )
    assert tenant.retries == made


@pytest.mark.parametrize(
    ("tenant", "told"),
    [
        ({"arrivals": {"kind": "closed", "clients": 4}}, "no closed arrivals"),
        ({"retries": {"attempts": 11, "wait": "hint"}}, "10 times more at most"),
        ({"deadline_s": {"kind": "uniform", "low": 1, "high": 2}}, "need a number"),
        ({"completion_tokens": {"kind": "uniform", "low": 1, "high": 2}}, "no uniform lengths"),
    ],
)
def test_what_this_stage_cannot_play_is_said_with_its_place(tenant: dict[str, Any], told: str) -> None:
    made = scenario({"name": "a", "arrivals": {"kind": "poisson", "load": 1}} | tenant)
    with pytest.raises(LabError, match=told):
        tenants_of(made, CAPACITY)


def test_a_trace_keeps_its_times_and_its_lengths_become_steps(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = [(0.0, "a", 250, 100), (1.0, "b", 500, 200), (2.0, "a", 250, 100), (4.0, "a", 250, 100)]
    lines = ["t_s,client,input_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kind = {"kind": "trace", "path": str(file), "format": "servegen", "by_client": True, "repeat": False}
    made = scenario({"name": "t", "arrivals": kind | {"time_scale": 2}})
    one, other = tenants_of(made, CAPACITY)
    assert names_of(made) == ("t-a", "t-b", "t-others")
    assert (one.name, other.name) == ("t-a", "t-b")
    assert [(row.at_s, row.answer_tokens) for row in one.recorded] == [(0.0, 18), (1.0, 18), (2.0, 18)]  # 0.18 s each
    assert [(row.at_s, row.prompt_tokens, row.answer_tokens) for row in other.recorded] == [(0.5, 1, 36)]
    assert one.key != other.key
    assert shape_of(made).answer_tokens == 22  # their mean


def test_a_trace_at_a_load_is_as_much_faster_as_gives_that_multiple_of_the_capacity(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    lines = ["t_s,client,input_tokens,output_tokens", *(f"{second},a,250,100" for second in range(60))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    kind = {"kind": "trace", "path": str(file), "load": 0.5}
    (tenant,) = tenants_of(scenario({"name": "t", "arrivals": kind}), CAPACITY)
    asked = sum(row.answer_tokens for row in tenant.recorded if row.at_s < 30)
    assert asked / 30 == pytest.approx(0.5 * 1600, rel=0.03)


def test_lengths_keep_their_median_and_their_tail() -> None:
    lengths = {"kind": "log_normal", "median": 100, "p95": 400}
    (tenant,) = tenants_of(
        scenario(
            {"name": "a", "prompt_tokens": 0, "completion_tokens": lengths, "arrivals": {"kind": "poisson", "load": 1}}
        ),
        CAPACITY,
    )
    assert tenant.answer_tokens.median == pytest.approx(8)
    assert tenant.answer_tokens.p95 == pytest.approx(32)


def test_workers_of_steps_are_played_as_they_are_and_prompts_cost() -> None:
    made = case("degradation_documents").scenario
    assert shape_of(made) == Shape(2, 8, 6.0, 48, 0.0, per_sequence_ms=0.15, prefill_ms=0.06, prompt_tokens=1040)
    (tenant,) = tenants_of(made, CAPACITY)
    assert tenant.answer_tokens == constant(48)
    assert tenant.prompt_tokens == PROMPT_TOKENS  # a question: the passages are the router's
    assert [each.prompt_tokens for each in tenants_of(case("two_frontends").scenario, CAPACITY)] == [constant(512)] * 2
    assert [step.per_s for step in tenant.steps] == pytest.approx([each * 1600 / 48 for each in (1, 1.5, 2, 3, 1)])


def test_every_moment_of_a_scenario_moves_with_its_pace() -> None:
    quick = case("degradation_documents").faster(0.1).scenario
    assert (quick.duration_s, quick.windows[-1].until_s) == pytest.approx((4.5, 4.4))
    assert quick.tenants[0].arrivals.moments == pytest.approx([0, 0.9, 1.8, 2.7, 3.6])
    killed = case("outage_killed").faster(0.5).scenario
    whole = case("outage_killed").scenario
    assert killed.workers[0].failures[0].until_s == whole.workers[0].failures[0].until_s / 2
