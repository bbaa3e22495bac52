"""The scenarios of the matrix: each is a file that real processes can play, bounded, and tuned for who asks in it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests.cluster.processes import Process
from loadtests.cluster.stand import Server, Stand
from loadtests.load.arrivals import Ask
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.plan import Plan, Tenant
from loadtests.runs.matrix import targets
from loadtests.runs.matrix.cases import BESIDE, SERIES, Case, deadlines
from loadtests.runs.matrix.cases import case as unread_case
from loadtests.runs.matrix.play import play
from loadtests.runs.matrix.playing import planned_s
from loadtests.runs.matrix.setup import MAX_SECONDS, Run, Setup
from loadtests.runs.matrix.staging import tenants_of
from loadtests.runs.matrix.subjects import SUBJECTS, queue_timeout_ms
from loadtests.scenarios.changes import Changes
from loadtests.scenarios.figures import is_asked
from loadtests.scenarios.model import names
from services.cli.errors import LabError
from tests.loadtests.runs.matrix.made import case, load

PER_S = 200.0


class Dry(Setup):
    """Runs nothing, and remembers what it was asked to run."""

    plans: list[Plan]

    async def run(self, name: str, *tenants: Tenant, seconds: float, **more: Any) -> Run:
        assert seconds <= MAX_SECONDS
        plan = Plan(seconds, tenants, warmup_s=more["warmup_s"], cooldown_s=more["cooldown_s"])
        self.plans.append(plan)
        run = load(tenants=tuple(tenant.name for tenant in tenants))
        return Run(name, plan, run.ledger, run.figures, run.used)


def capacity(of: Case) -> Capacity:
    per_s = of.shape.all_slots / of.shape.service_s
    return Capacity(per_s, per_s * of.shape.answer_tokens, Quantiles())


def played(of: Case, folder: Path, *, alone: bool = True) -> list[Plan]:
    setup = Dry(Stand(of.shape, folder), capacity(of), lambda text: None)
    setup.plans = []
    assert asyncio.run(play(setup, of, alone=alone)).rows[0].name == of.name
    return setup.plans


each_case = pytest.mark.parametrize("name", [*SERIES, *BESIDE])


@each_case
def test_it_lasts_as_long_as_it_says_and_asks_only_with_tenants_it_has_made(name: str, tmp_path: Path) -> None:
    for alone in (True, False):
        plans = played(case(name), tmp_path, alone=alone)
        assert sum(plan.seconds for plan in plans) == pytest.approx(case(name).seconds(alone=alone))
        for plan in plans:
            assert {tenant.name for tenant in plan.tenants} <= set(case(name).tenants)
            assert all(tenant.key for tenant in plan.tenants)


@each_case
def test_a_request_that_waits_as_long_as_a_tuned_queue_lets_it_can_still_be_answered_in_time(name: str) -> None:
    made = case(name)
    tenants = tenants_of(made.scenario, capacity(made))
    wait_ms = queue_timeout_ms(made.shape, deadlines(tenants, made.shape))
    for tenant in tenants:
        assert wait_ms + tenant.answer_tokens.median * made.shape.step_ms < tenant.deadline_ms
    assert deadlines(tenants, made.shape).longest_ms == max(tenant.deadline_ms for tenant in tenants)


@each_case
def test_no_load_is_more_than_two_cores_can_send(name: str, tmp_path: Path) -> None:
    for plan in played(case(name), tmp_path):
        assert sum(max(step.per_s for step in tenant.steps) for tenant in plan.tenants) <= 2100


@each_case
def test_a_quick_one_is_the_same_but_shorter(name: str, tmp_path: Path) -> None:
    whole, quick = played(case(name), tmp_path), played(case(name).faster(0.1), tmp_path)
    assert [plan.seconds for plan in quick] == pytest.approx([plan.seconds / 10 for plan in whole])
    rates = [[[step.per_s for step in tenant.steps] for tenant in plan.tenants] for plan in whole]
    assert [[[step.per_s for step in tenant.steps] for tenant in plan.tenants] for plan in quick] == rates


@each_case
def test_it_asks_something_and_says_what_to_look_at_and_its_targets_can_be_read(name: str) -> None:
    scenario = case(name).scenario
    assert scenario.question.endswith("?")
    assert "ook " in scenario.about + " ".join(scenario.watch)
    assert [must.figure for must in scenario.must if is_asked(must, "processes") and not targets.known(must)] == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("baseline", 0.75), ("overload_5x", 5.0), ("bursty", 0.8), ("mixed_deadlines", 3.3), ("big_neighbour", 10.25)],
)
def test_the_mean_load_is_what_it_is_called(name: str, wanted: float) -> None:
    made = case(name)
    found = capacity(made)
    tokens = 0.0
    for tenant, group in zip(tenants_of(made.scenario, found), _groups(made), strict=True):
        mean = found.tokens_per_s * group.arrivals.load / tenant.steps[0].per_s
        tokens += tenant.steps[0].per_s * mean / len([each for each in _groups(made) if each is group])
    assert tokens / found.tokens_per_s == pytest.approx(wanted, rel=0.01)


def _groups(made: Case) -> list[Any]:
    return [group for group in made.scenario.tenants for _ in range(group.count)]


def test_only_those_who_may_be_cut_are_said_to_be() -> None:
    assert {name for name in SERIES if case(name).may_be_cut} == {"degradation", "degradation_documents"}
    assert case("degradation").may_be_cut == {"tenant-1", "tenant-2", "tenant-3"}


def test_documents_are_asked_about_by_all_or_by_nobody(tmp_path: Path) -> None:
    assert {name for name in SERIES if case(name).asks} == {"degradation_documents"}
    for sets in (("tenants.0.ask=0.5",), ("tenants.0.count=1", "tenants.0.ask=0.2")):
        with pytest.raises(LabError, match="in all requests, or in none"):
            unread_case("baseline", Changes(sets=sets))


def test_behind_two_frontends_each_tenant_has_its_own_and_all_have_their_weights() -> None:
    made = case("two_frontends")
    assert (made.frontends, made.enters, made.weights) == (2, {"premium": 0, "regular": 1}, {"premium": 4})
    assert (case("baseline").frontends, case("baseline").enters, case("baseline").weights) == (1, {}, {})
    for sets in (("tenants.0.routers=[]",), ("tenants.1.routers=[0, 1]",), ("tenants.0.may_clamp=true",)):
        with pytest.raises(LabError, match="one router each"):
            unread_case("two_frontends", Changes(sets=sets))


def test_requests_go_to_the_frontend_of_their_tenant_and_to_the_only_one_where_there_is_one(tmp_path: Path) -> None:
    made = case("two_frontends")
    stand = Stand(made.shape, tmp_path, router=server(tmp_path, 7001), beside=[server(tmp_path, 7002)])
    tenants = tenants_of(made.scenario, capacity(made))
    for fronts, ports in ((stand, {"premium": 7001, "regular": 7002}), (replace(stand, beside=[]), {"regular": 7001})):
        client = Setup(fronts, capacity(made), lambda text: None, enters=made.enters).client(Plan(9.0, tenants))
        for tenant in tenants:
            ask = Ask(0.0, tenant, 512, 1, False)
            host = f"host: 127.0.0.1:{ports.get(tenant.name, 7001)}\r\n".encode()
            assert host in client._requests.bytes_of(ask, 1)
            assert host == b"host: 127.0.0.1:%d\r\n" % client._pools[tenant.name]._port


def server(folder: Path, port: int) -> Server:
    return Server(Process("front", (), {}, folder), f"http://127.0.0.1:{port}")


def test_every_one_is_a_file_and_named_once() -> None:
    assert len({*SERIES, *BESIDE}) == len(SERIES) + len(BESIDE)
    assert {*SERIES, *BESIDE} <= {*names()}
    assert len({case(name).title for name in SERIES}) == len(SERIES)


def test_the_whole_matrix_takes_little_more_than_an_hour() -> None:
    jobs = [(case(name), subject) for name in SERIES for subject in SUBJECTS if case(name).is_for(subject)]
    assert planned_s(jobs, 1.0) <= 75 * 60
