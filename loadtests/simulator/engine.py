"""One run: measure capacity, make the plan and the policy, simulate, report."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from loadtests.scenarios.model import PolicyChoice, Scenario, TenantGroup
from loadtests.simulator import capacity, fairness
from loadtests.simulator.accounts import Account, merged
from loadtests.simulator.capacity import Measured
from loadtests.simulator.job import Job
from loadtests.simulator.plan import Plan
from loadtests.simulator.policies import catalog, weir
from loadtests.simulator.policies.weir import WeirPolicy
from loadtests.simulator.report import Capacity, Ledger, PolicyReport, TenantReport
from loadtests.simulator.routers.simulation import RoutersSimulation
from loadtests.simulator.simulation import Simulation
from services.core.cost import Weights

Progress = Callable[[float], None]
"""Called with the share of the run that is done, 0 to 1."""
Ended = Callable[[float, Job, str], None]
"""Called at the end of each distinct request: time, last attempt, outcome."""


def run(
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    load: float | None = None,
    measured: Measured | None = None,
    progress: Progress | None = None,
    ended: Ended | None = None,
) -> PolicyReport:
    """Run a policy with the scenario's seed. Measures capacity unless `measured` gives it; `load` is only reported."""
    measured = measured or capacity.measure(scenario)
    simulation = prepare(scenario, choice, measured)
    simulation.ended = ended
    if progress is not None:
        simulation.watch = lambda now: progress(min(1.0, now / scenario.duration_s))
    began = time.perf_counter()
    with _rare_collections():
        simulation.run_until(scenario.duration_s)
        simulation.drain()
    return report_of(simulation, choice, measured.capacity, time.perf_counter() - began, load)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Jobs are in no reference cycles, so the default collection after every 700 objects is wasted time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def prepare(scenario: Scenario, choice: PolicyChoice, measured: Measured) -> Simulation:
    """A simulation at second 0."""
    plan = Plan(scenario, measured.rates, seed=scenario.seed, choice=choice)
    weights = capacity.weights_of(scenario.workers)
    routers = choice.routers_of(scenario)
    if routers is not None and routers.count > 1:
        return RoutersSimulation(
            scenario, routers, plan, partial(_router_policy, scenario, choice, weights), weights, seed=scenario.seed
        )
    policy = catalog.build(
        scenario,
        choice,
        seed=scenario.seed,
        weights=weights,
        announced=capacity.announced(scenario.workers),
        tenant_weights={tenant.name: tenant.weight for tenant in plan.tenants},
    )
    if routers is not None:
        scenario = scenario.at_distance(routers.half_trip_ms)
    return Simulation(scenario, plan, policy, weights, seed=scenario.seed)


def _router_policy(scenario: Scenario, choice: PolicyChoice, weights: Weights, place: int) -> WeirPolicy:
    """The policy of one of several routers."""
    settings = {**scenario.weir, **choice.settings, "several_routers": True}
    random = Random(f"{scenario.seed}/weir/{place}").random
    return weir.build(scenario, settings, weights, capacity.announced(scenario.workers), random)


def report_of(
    simulation: Simulation, choice: PolicyChoice, measured: Capacity, real_s: float, load: float | None = None
) -> PolicyReport:
    """The report of a drained simulation."""
    scenario, plan = simulation.scenario, simulation.plan
    window_s = scenario.duration_s - scenario.warm_up_s - scenario.cool_down_s
    total = merged(plan.accounts.values())
    ledger = total.ledger()
    changes = simulation.policy.level_changes
    return PolicyReport(
        title=scenario.title,
        policy=choice.name,
        seed=scenario.seed,
        load=load,
        offered_load=_offered_load(simulation, ledger, measured, window_s),
        window_s=window_s,
        capacity=measured,
        ledger=ledger,
        tenants=_tenants(simulation, total, window_s),
        goodput_per_s=total.on_time / window_s,
        goodput_cost_per_s=total.on_time_cost / window_s,
        work=simulation.work.total(scenario.duration_s),
        latency_s=total.latency_s.quantiles(),
        first_token_s=total.first_token_s.quantiles(),
        wait_s=total.wait_s.quantiles(),
        latency_to_deadline=total.latency_to_deadline.quantiles(),
        admitted=total.admitted,
        dropped_after_admission_share=_share(total.dropped, total.admitted),
        missed_after_worker_share=_share(total.missed, total.admitted),
        answers_after_deadline=total.late,
        dispatches=total.dispatches,
        hints=total.hint_counts(),
        fairness=fairness.summary(simulation.gaps, simulation.jain),
        quality=total.quality(scenario.quality, changes, scenario.duration_s / 60.0),
        coverage=simulation.predictions.coverage(),
        series=simulation.timeline.series(),
        simulated_requests=simulation.timeline.offered_total,
        real_s=real_s,
        routers=simulation.routers_report() if isinstance(simulation, RoutersSimulation) else None,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _offered_load(simulation: Simulation, ledger: Ledger, measured: Capacity, window_s: float) -> float | None:
    if simulation.plan.loops:
        return None
    return ledger.distinct / window_s / measured.requests_per_s


def _tenants(simulation: Simulation, total: Account, window_s: float) -> tuple[TenantReport, ...]:
    groups: dict[str, tuple[TenantGroup, int]] = {}
    accounts = {id(account): name for name, account in simulation.plan.accounts.items()}
    for tenant in simulation.plan.tenants:
        name = accounts[id(tenant.account)]
        groups[name] = (tenant.group, groups[name][1] + 1 if name in groups else 1)
    return tuple(
        _tenant(name, *groups[name], account, total, window_s) for name, account in simulation.plan.accounts.items()
    )


def _tenant(
    name: str, group: TenantGroup, tenants: int, account: Account, total: Account, window_s: float
) -> TenantReport:
    return TenantReport(
        name=name,
        tenant_class=group.tenant_class,
        weight=group.weight,
        tenants=tenants,
        ledger=account.ledger(),
        offered_per_s=account.distinct / window_s,
        goodput_per_s=account.on_time / window_s,
        goodput_cost_per_s=account.on_time_cost / window_s,
        served_cost_share=account.served_cost / total.served_cost if total.served_cost else 0.0,
        on_time_share=_share(account.on_time, account.distinct),
        latency_s=account.latency_s.quantiles(),
        first_token_s=account.first_token_s.quantiles(),
        wait_s=account.wait_s.quantiles(),
    )
