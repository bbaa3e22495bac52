"""Several routers in the simulator: the promises in shortened rows, faults, and one router as before."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.scenarios.changes import Changes
from loadtests.scenarios.model import PolicyChoice, Scenario, parse
from loadtests.scenarios.stages import on_stage
from loadtests.simulator import capacity
from loadtests.simulator.engine import prepare, report_of, run
from loadtests.simulator.readings import gap_over_bound, members, share_on_time
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.results import compare
from loadtests.simulator.routers.simulation import RoutersSimulation
from loadtests.simulator.runs import execute, plan
from loadtests.simulator.simulation import Simulation
from loadtests.simulator.targets import targets
from services.cli.errors import LabError

WEIR = PolicyChoice(policy="weir")
ONE = PolicyChoice(policy="weir", label="one_router", routers={"count": 1})
STATIC = PolicyChoice(policy="weir", label="static", routers={"leases": "static"})


def row(name: str, **changes: Any) -> Scenario:
    sets = tuple(f"{path}={value}" for path, value in {"duration_s": 16, **changes}.items())
    return on_stage(name, "simulator", Changes(sets=sets))


def small(**changes: Any) -> Scenario:
    """Four routers, 16 slots, one tenant at three times capacity and one light."""
    tenant = {"prompt_tokens": 100, "completion_tokens": 50, "max_tokens": 50, "deadline_s": 1}
    raw: dict[str, Any] = {
        "title": "small",
        "duration_s": 12,
        "workers": [{"kind": "slots", "count": 4, "slots": 4, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}],
        "routers": {"count": 4},
        "tenants": [
            {"name": "big", "arrivals": {"kind": "poisson", "load": 3}, **tenant},
            {"name": "light", "arrivals": {"kind": "poisson", "load": 0.2}, **tenant},
        ],
    }
    return parse({**raw, **changes})


def on_time(scenario: Scenario, report: PolicyReport, name: str) -> float:
    group = next(each for each in scenario.tenants if each.name == name)
    return share_on_time(members(report, group)) or 0.0


@pytest.mark.parametrize(
    "name",
    [
        "routers_aggressor", "routers_weights", "routers_alone", "routers_flood", "routers_everywhere",
        "routers_skewed_3x", "routers_big_neighbour", "routers_light", "routers_classes", "two_frontends",
    ],
)  # fmt: skip
def test_a_row_holds_its_targets(name: str) -> None:
    assert missed(name, row(name)) == []


def test_routers_that_lose_the_store_three_times_hold_the_targets_of_their_row() -> None:
    """In full: in a few seconds a light tenant has too few requests for a target of a hundredth."""
    assert missed("routers_store_lost", row("routers_store_lost", duration_s=40)) == []


def missed(name: str, scenario: Scenario) -> list[str]:
    """The targets that Weir misses beside one router."""
    scenario = scenario.model_copy(
        update={"policies": tuple(each for each in scenario.policies if each.name != "static")}
    )
    found = targets(compare(name, scenario, execute(plan(scenario), 1, lambda done, runs: None)))
    assert len(found) >= 3
    return [figure.name for figure in found if not figure.held]


def test_with_leases_in_fixed_parts_the_same_row_is_unfair() -> None:
    """So that the row can tell."""
    report = run(row("routers_weights"), STATIC)
    assert report.tenants[0].served_cost_share < 0.55


def test_without_an_exchange_a_tenant_behind_all_routers_gets_more_than_its_share() -> None:
    report = run(row("routers_everywhere", **{"routers.exchange_ms": 0}), WEIR)
    assert report.tenants[0].served_cost_share > 0.4
    assert report.routers is not None
    assert report.routers.over_slots == 0


def test_the_same_seed_gives_the_same_report() -> None:
    one, other = (run(small(), WEIR).to_json() for _ in range(2))
    assert {**one, "real_s": 0} == {**other, "real_s": 0}


def test_one_router_is_the_simulation_of_one_router_byte_for_byte() -> None:
    """I5: with one router no book, no lease and no exchange is made."""
    alone, leased = small(routers=None), small()
    far = small(
        routers=None,
        workers=[{**alone.workers[0].model_dump(exclude={"round_trip_ms"}), "round_trip_ms": 0.5}],
    )
    simulation = prepare(leased, ONE, capacity.measure(leased))
    assert type(simulation) is Simulation
    one, same = run(leased, ONE).to_json(), run(far, ONE).to_json()
    assert {**one, "real_s": 0} == {**same, "real_s": 0}


def test_several_routers_are_told_apart_from_one() -> None:
    scenario = small()
    simulation = prepare(scenario, WEIR, capacity.measure(scenario))
    assert isinstance(simulation, RoutersSimulation)
    assert [router.name for router in simulation.routers] == ["r0", "r1", "r2", "r3"]
    report = run(scenario, WEIR)
    assert report.routers is not None
    assert report.routers.routers == 4
    assert (gap_over_bound(report) or 0.0) <= 1.0
    assert run(scenario, ONE).routers is None


@pytest.mark.parametrize(
    ("fault", "at_least"),
    [
        ({"kind": "killed", "router": 0}, 0.9),
        ({"kind": "frozen", "router": 0}, 0.7),
        ({"kind": "cut", "router": 0}, 0.6),
        ({"kind": "cut", "router": 0, "workers": 2}, 0.9),
        ({"kind": "cut", "router": 0, "ways": "to"}, 0.6),
        ({"kind": "cut", "router": 0, "ways": "from"}, 0.6),
        ({"kind": "cut", "router": 0, "of": "store"}, 0.99),
    ],
)
def test_a_fault_costs_its_router_only_and_no_worker_runs_above_its_slots(
    fault: dict[str, Any], at_least: float
) -> None:
    """The light tenant is behind all routers: a quarter of its requests meets the one that is at fault, for 3 of 12 s.

    From a lease's time after the fault, no slot is idle while another router has work.
    """
    scenario = small(routers={"count": 4, "faults": [{**fault, "from_s": 5, "until_s": 8}]})
    measured = capacity.measure(scenario)
    simulation = prepare(scenario, WEIR, measured)
    assert isinstance(simulation, RoutersSimulation)
    for until, judged in ((5.9, False), (8.0, True), (8.3, False), (scenario.duration_s, True)):
        idle, samples = simulation._idle, simulation._samples
        simulation.run_until(until)
        share = (simulation._idle - idle) / (simulation._samples - samples) / scenario.slots
        assert share < 0.03 or not judged, f"{share:.1%} of the slots idle before {until} s"
    for book in simulation.books.values():
        assert book.running <= book.promised <= book.slots
    simulation.drain()
    assert simulation.over_slots == 0
    report = report_of(simulation, WEIR, measured.capacity, 0.0)
    assert on_time(scenario, report, "light") >= at_least


def test_a_router_that_is_killed_gives_its_slots_back_at_once() -> None:
    scenario = small(routers={"count": 4, "faults": [{"kind": "killed", "router": 0, "from_s": 5, "until_s": 9}]})
    simulation = prepare(scenario, WEIR, capacity.measure(scenario))
    assert isinstance(simulation, RoutersSimulation)
    simulation.run_until(5.01)
    assert all(lease.router != "r0" for book in simulation.books.values() for lease in book.leases())
    simulation.run_until(9.5)
    assert simulation.routers[0].epoch > 4
    assert any(lease.router == "r0" for book in simulation.books.values() for lease in book.leases())


def test_a_worker_that_is_down_lends_nothing_and_lends_anew_when_it_is_up() -> None:
    down = {"kind": "down", "from_s": 5, "until_s": 7, "workers": 1}
    scenario = small()
    workers = [{**scenario.workers[0].model_dump(), "failures": [down]}]
    scenario = small(workers=workers)
    simulation = prepare(scenario, WEIR, capacity.measure(scenario))
    assert isinstance(simulation, RoutersSimulation)
    simulation.run_until(6.0)
    assert simulation.books["w0"].promised == 0
    simulation.run_until(9.0)
    assert simulation.books["w0"].promised == 4
    simulation.run_until(scenario.duration_s)
    simulation.drain()
    assert simulation.over_slots == 0


@pytest.mark.parametrize("ingress", ["even", "zipf", "tenant", "90/10"])
def test_requests_reach_the_routers_as_the_ingress_says(ingress: str) -> None:
    scenario = small(routers={"count": 4, "ingress": ingress}, duration_s=8)
    simulation = prepare(scenario, WEIR, capacity.measure(scenario))
    assert isinstance(simulation, RoutersSimulation)
    simulation.run_until(6.0)
    parts = [sum(node.flows.served for node in router.pool.nodes.values()) for router in simulation.routers]
    if ingress == "tenant":
        assert sum(part > 0 for part in parts) <= 2
    else:
        assert all(part > 0 for part in parts)
    if ingress in ("zipf", "90/10"):
        assert parts[0] == max(parts)


@pytest.mark.parametrize(
    ("routers", "fault"),
    [
        ({"count": 0}, "routers.count"),
        ({"count": 2, "faults": [{"kind": "killed", "router": 2, "from_s": 1, "until_s": 2}]}, "there is no router 2"),
        ({"count": 2, "ingress": "odd"}, "routers.ingress"),
        ({"count": 2, "faults": [{"kind": "melted", "router": 0, "from_s": 1, "until_s": 2}]}, "kind"),
    ],
)
def test_a_wrong_description_of_routers_is_a_fault_with_its_place(routers: dict[str, Any], fault: str) -> None:
    with pytest.raises(LabError) as error:
        small(routers=routers)
    assert any(fault in note for note in error.value.notes)


def test_a_tenant_behind_a_router_that_is_not_there_is_a_fault() -> None:
    tenant = {"name": "a", "arrivals": {"kind": "poisson", "load": 1}, "routers": [4]}
    with pytest.raises(LabError) as error:
        small(tenants=[tenant])
    assert any("a asks router 4, and the last is 3" in note for note in error.value.notes)
