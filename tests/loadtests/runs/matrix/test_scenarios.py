"""The scenarios as data: bounded, played by tenants that the stack knows, and tuned for whom they are said to be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadtests.cluster.stand import Shape, Stand
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.plan import Plan, Tenant
from loadtests.runs.drill import MOST_SECONDS, Drill, Run
from loadtests.runs.matrix import stack
from loadtests.runs.matrix.playing import planned_s
from loadtests.runs.matrix.plays import Stage
from loadtests.runs.matrix.policies import POLICIES, WEIR
from loadtests.runs.matrix.scenarios import SCENARIOS, Scenario
from loadtests.runs.matrix.stack import SHAPE
from loadtests.runs.peers.gateways import in_time_for_the_tightest
from tests.loadtests.runs.matrix.made import load

PER_S = 200.0


class Dry(Drill):
    """Runs nothing, and remembers what it was asked to run."""

    plans: list[Plan]

    async def run(self, name: str, *tenants: Tenant, seconds: float, **more: Any) -> Run:
        assert seconds <= MOST_SECONDS
        plan = Plan(seconds, tenants, warmup_s=more["warmup_s"], cooldown_s=more["cooldown_s"])
        self.plans.append(plan)
        run = load(tenants=tuple(tenant.name for tenant in tenants))
        return Run(name, plan, run.ledger, run.figures, run.used)


def played(scenario: Scenario, folder: Path, pace: float = 1.0, *, is_weir: bool = True) -> tuple[Stage, list[Plan]]:
    drill = Dry(Stand(Shape(), folder), Capacity(PER_S, 8 * PER_S, Quantiles()), lambda text: None)
    drill.plans = []
    stage = Stage(drill, is_weir, pace)
    rows = asyncio.run(scenario.play(stage))
    assert rows[0].name == scenario.name
    return stage, drill.plans


each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@each_scenario
def test_a_scenario_lasts_as_long_as_it_says(scenario: Scenario, tmp_path: Path) -> None:
    _, plans = played(scenario, tmp_path, is_weir=False)
    assert sum(plan.seconds for plan in plans) == pytest.approx(scenario.seconds)


@each_scenario
def test_haproxy_is_tuned_for_the_deadlines_that_are_asked(scenario: Scenario, tmp_path: Path) -> None:
    _, plans = played(scenario, tmp_path)
    deadlines = {tenant.deadline_ms for plan in plans for tenant in plan.tenants}
    assert min(deadlines) == scenario.tightest_ms
    assert max(deadlines) == scenario.longest_ms


@each_scenario
def test_who_waits_as_long_as_haproxy_lets_it_can_still_be_answered_in_time(scenario: Scenario, tmp_path: Path) -> None:
    _, plans = played(scenario, tmp_path)
    wait_ms = in_time_for_the_tightest(SHAPE, scenario.deadlines(SHAPE))
    for tenant in plans[-1].tenants:
        assert wait_ms + tenant.answer_tokens.median * SHAPE.step_ms < tenant.deadline_ms


@each_scenario
def test_the_stack_knows_all_who_ask(scenario: Scenario, tmp_path: Path) -> None:
    _, plans = played(scenario, tmp_path)
    asking = {tenant.name for plan in plans for tenant in plan.tenants}
    assert asking <= {*stack.WHOLE, *stack.CUTTABLE}
    assert bool(asking & {*stack.CUTTABLE}) == (scenario.name == "degradation")


@each_scenario
def test_no_load_is_more_than_two_cores_can_send(scenario: Scenario, tmp_path: Path) -> None:
    _, plans = played(scenario, tmp_path)
    for plan in plans:
        assert sum(max(step.per_s for step in tenant.steps) for tenant in plan.tenants) <= 2100


@each_scenario
def test_a_quick_scenario_is_the_same_one_but_shorter(scenario: Scenario, tmp_path: Path) -> None:
    whole, quick = played(scenario, tmp_path)[1], played(scenario, tmp_path, 0.1)[1]
    assert [plan.seconds for plan in quick] == pytest.approx([plan.seconds / 10 for plan in whole])
    rates = [[[step.per_s for step in tenant.steps] for tenant in plan.tenants] for plan in whole]
    assert [[[step.per_s for step in tenant.steps] for tenant in plan.tenants] for plan in quick] == rates


def test_the_mean_load_is_what_it_is_called(tmp_path: Path) -> None:
    for name, wanted in (("baseline", 0.75), ("overload_5x", 5.0), ("bursty", 0.8), ("mixed_deadlines", 3.3)):
        (plan,) = played(next(each for each in SCENARIOS if each.name == name), tmp_path)[1]
        assert plan.expected / plan.seconds / PER_S == pytest.approx(wanted, rel=0.01)


def test_every_scenario_of_the_series_is_there_and_named_once() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert {"baseline", "burst", "noisy_neighbour", "slow_worker", "retry_storm", "recovery", "degradation",
            "mixed_deadlines"} <= {*names}  # fmt: skip


def test_the_whole_series_takes_about_a_quarter_of_an_hour() -> None:
    jobs = [(scenario, policy) for scenario in SCENARIOS for policy in POLICIES]
    assert planned_s(jobs, 1.0) <= 20 * 60
    assert WEIR is POLICIES[0]


def test_only_those_who_may_be_cut_are_said_to_be(tmp_path: Path) -> None:
    lines = stack.tenants_yaml().splitlines()[1:]
    assert {line.split("id: ")[1].split(",")[0] for line in lines if "degrade: true" in line} == {*stack.CUTTABLE}
    assert "fire-" not in stack.tenants_yaml()  # no key is written down


@pytest.mark.sockets
def test_the_ports_of_a_stack_and_of_its_metrics_differ() -> None:
    ports = stack.free_ports()
    assert len(set(ports.values())) == len(ports)
    assert ports["SECOND"] == ports["WORKER_PORT"] + 1
