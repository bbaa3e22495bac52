"""Measures the capacity of the workers: a closed loop of one client per slot, without a router.

No request is rejected, cancelled or late, no worker fails and the network takes no time. A group's load becomes a rate
through the capacity for that group alone, so loads add up in worker time. Then the capacity for the mix of all groups
is measured, and the rates are scaled so that the total load is the scenario's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from random import Random
from typing import NamedTuple

from loadtests.scenarios.arrivals import Closed, Trace
from loadtests.scenarios.distributions import constant
from loadtests.scenarios.model import Scenario, SlotWorkers, TenantGroup, Workers
from loadtests.simulator.accounts import Account
from loadtests.simulator.clients import Sizes, Tenant
from loadtests.simulator.job import Job
from loadtests.simulator.plan import ClosedLoop
from loadtests.simulator.policies.fifo import Fifo
from loadtests.simulator.report import Capacity
from loadtests.simulator.simulation import Simulation
from services.core.cost import Weights
from services.core.estimator import Estimator

ANSWERS = 20_000
ANSWERS_OF_STEPS = 5_000
SIZES = ("prompt_tokens", "context_tokens", "completion_tokens", "max_tokens")
REPLAYED = ("kind", "path", "format", "start_s", "length_s", "token_scale")
UNSEEN_PREFILL = 1e-9
"""Seconds per prompt token where prefill is free."""


class Measured(NamedTuple):
    """The capacity, and each group's rate in requests per second."""

    capacity: Capacity
    rates: Mapping[str, float]


def measure(scenario: Scenario) -> Measured:
    """With the scenario's seed. Cached: a process measures each mix once."""
    loads = {group.name: group.arrivals.load for group in scenario.tenants if not isinstance(group.arrivals, Closed)}
    rates: dict[str, float] = {}
    for group in scenario.tenants:
        rate = _rate(scenario, group)
        if rate is not None:
            rates[group.name] = rate
    capacity = _mix(scenario, rates)
    if rates and all(load is not None for load in loads.values()):
        asked = sum(load for load in loads.values() if load is not None)
        scale = asked * capacity.requests_per_s / sum(rates.values())
        rates = {name: rate * scale for name, rate in rates.items()}
    return Measured(capacity, rates)


def _rate(scenario: Scenario, group: TenantGroup) -> float | None:
    arrivals = group.arrivals
    if isinstance(arrivals, Closed):
        return None
    if arrivals.load is not None:
        return arrivals.load * _mix(scenario, {group.name: 1.0}).requests_per_s
    if isinstance(arrivals, Trace):
        return (arrivals.time_scale or 1.0) * arrivals.part().per_s
    return arrivals.rate_per_s


def _mix(scenario: Scenario, rates: Mapping[str, float]) -> Capacity:
    """The capacity for these groups in proportion to their rates; without rates, of closed groups by their clients."""
    if not rates:
        closed = {each.name: each.arrivals for each in scenario.tenants if isinstance(each.arrivals, Closed)}
        rates = {name: float(arrivals.max_clients) for name, arrivals in closed.items()}
    shares: dict[str, float] = {}
    for group in scenario.tenants:
        if group.name in rates:
            asked = _what_is_asked(group)
            shares[asked] = shares.get(asked, 0.0) + rates[group.name] / sum(rates.values())
    workers = [
        group.model_copy(update={"failures": (), "round_trip_ms": 0.0, "lookahead": 0}) for group in scenario.workers
    ]
    bare = {
        "title": "capacity",
        "seed": scenario.seed,
        "duration_s": 1e6,
        "bucket_s": 3600.0,
        "workers": [json.loads(group.model_dump_json()) for group in workers],
        "tenants": [{"name": f"t{place}", **json.loads(asked)} for place, asked in enumerate(sorted(shares))],
    }
    return _measured(json.dumps(bare, sort_keys=True), tuple(round(shares[asked], 6) for asked in sorted(shares)))


def _what_is_asked(group: TenantGroup) -> str:
    """The sizes of a group's requests as JSON, without tenant and load: the key of the cache."""
    sizes = json.loads(group.model_dump_json(include={*SIZES}))
    if isinstance(group.arrivals, Trace):
        arrivals = json.loads(group.arrivals.model_dump_json(include={*REPLAYED}))
    else:
        arrivals = {"kind": "poisson", "load": 1.0}
    return json.dumps({**sizes, "arrivals": arrivals}, sort_keys=True)


@lru_cache(maxsize=256)
def _measured(bare: str, shares: tuple[float, ...]) -> Capacity:
    scenario = Scenario.model_validate_json(bare)
    saturation = Saturation(scenario, shares)
    weights = weights_of(scenario.workers)
    simulation = Simulation(scenario, saturation, Fifo(), weights, seed=scenario.seed)
    is_slots = all(isinstance(group, SlotWorkers) for group in scenario.workers)
    wanted = ANSWERS if is_slots else ANSWERS_OF_STEPS
    until = 0.25
    while simulation.answers < 3 * scenario.slots:
        until *= 2
        simulation.run_until(until)
    from_s, answers, cost = until, simulation.answers, simulation.answered_cost
    while simulation.answers - answers < wanted:
        until *= 1.1
        simulation.run_until(until)
    span_s, answers = until - from_s, simulation.answers - answers
    return Capacity(
        requests_per_s=answers / span_s,
        cost_per_s=(simulation.answered_cost - cost) / span_s,
        slots=scenario.slots,
        prompt_weight=weights.prompt,
        completion_weight=weights.completion,
        service_s=scenario.slots * span_s / answers,
    )


class Saturation:
    """A plan with one client per slot that sends its next request at once, drawn from the mix."""

    def __init__(self, scenario: Scenario, shares: Sequence[float]) -> None:
        self._chance = Random(f"{scenario.seed}/capacity")
        account = Account()
        self.accounts = {"all": account}
        self.tenants: list[Tenant] = []  # no tenant's fairness is measured
        self.number = count(1).__next__
        self._askers = [Tenant(group.name, group, account, 0, False) for group in scenario.tenants]
        self._draws = [_Draw(group, self._chance) for group in scenario.tenants]
        self._shares = shares
        self.clients = scenario.slots
        self.loops: list[ClosedLoop] = [self]
        self.chunk_s = math.inf

    def until(self, until: float) -> list[Job]:
        return []

    def think(self) -> float:
        return 0.0

    def next_active(self, client: int, at: float) -> float:
        return at

    def draw(self, number: int, client: int, now: float) -> Job:
        place = 0
        if len(self._askers) > 1:
            (place,) = self._chance.choices(range(len(self._askers)), self._shares)
        job = self._draws[place].job(number, self._askers[place], now)
        job.deadline = job.leaves_at = math.inf
        return job


class _Draw:
    """Draws requests of a group, from its distributions or from random rows of its trace."""

    def __init__(self, group: TenantGroup, chance: Random) -> None:
        timeless = group.model_copy(update={"deadline_s": constant(1.0), "client_timeout_s": None})
        self._sizes = Sizes(timeless, chance)
        self._chance = chance
        trace = group.arrivals if isinstance(group.arrivals, Trace) else None
        self._rows = trace.part().rows if trace else ()
        self._scale = trace.token_scale if trace else 1.0

    def job(self, number: int, asker: Tenant, now: float) -> Job:
        if not self._rows:
            return self._sizes.job(number, asker, now)
        row = self._rows[int(self._chance.random() * len(self._rows))]
        prompt, completion = (
            round(row.prompt_tokens * self._scale) or 1,
            round(row.completion_tokens * self._scale) or 1,
        )
        return self._sizes.job(number, asker, now, prompt, completion)


# ---- cost and speed of the workers


def weights_of(groups: tuple[Workers, ...]) -> Weights:
    """Cost per token as calibration of these workers gives it; the mean by slots."""
    return Weights.calibrated(_mean(groups, _read_s), _mean(groups, _write_s))


def announced(groups: tuple[Workers, ...]) -> Estimator:
    """The estimates that the workers announce: work per slot-second, prefill and decode speed with all slots busy."""
    weights = weights_of(groups)
    return Estimator(
        work_per_slot_s=weights.completion / _mean(groups, _write_s),
        prefill_s_per_token=_mean(groups, _prefill_s),
        s_per_token=_mean(groups, _token_s),
        readers=0 if any(isinstance(group, SlotWorkers) for group in groups) else sum(group.count for group in groups),
    )


def _mean(groups: tuple[Workers, ...], of: Callable[[Workers], float]) -> float:
    slots = [group.count * group.slots for group in groups]
    return float(sum(of(group) * count for group, count in zip(groups, slots, strict=True)) / sum(slots))


def _read_s(group: Workers) -> float:
    """Slot-seconds per prompt token."""
    if isinstance(group, SlotWorkers):
        return 1.0 / group.prefill_tokens_per_s
    return max(UNSEEN_PREFILL, group.per_prefill_token_ms * group.slots / 1000.0)


def _write_s(group: Workers) -> float:
    """Slot-seconds per completion token."""
    if isinstance(group, SlotWorkers):
        return group.s_per_token
    return (group.base_ms + group.per_sequence_ms * group.slots) / 1000.0


_token_s = _write_s


def _prefill_s(group: Workers) -> float:
    """Seconds of prefill per prompt token."""
    if isinstance(group, SlotWorkers):
        return 1.0 / group.prefill_tokens_per_s
    full_step_ms = group.base_ms + group.per_sequence_ms * group.slots
    return (group.per_prefill_token_ms + full_step_ms / group.chunk_tokens) / 1000.0
