"""A scheduler's state at one moment, as immutable values from which every view is made.

Taking a snapshot changes nothing, not even when an estimate is refreshed. The caller names the tenants to describe, so
its size is bounded. None stands for a value that is infinite or not known yet.

Cost: a few microseconds per tenant and pool. Only `totals` (with `full`) passes over all tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from itertools import islice
from math import inf, isfinite
from typing import NamedTuple

from services.core.account import QueueBounds, TenantAccount
from services.core.calibration import PUBLISHED, WaitCalibration
from services.core.cost import Lengths
from services.core.policies import Policies
from services.core.pool import ClassNode, Flow
from services.core.request import Request
from services.core.schedulable import OUT, RingPosition
from services.core.scheduler import Scheduler
from services.core.stats import PoolStats

# ---- what a snapshot consists of


class UsageSnapshot(NamedTuple):
    """What is queued, of one tenant or of all, and its bounds."""

    requests: int
    cost_tokens: float
    bytes: int
    bounds: QueueBounds


class CoverageSnapshot(NamedTuple):
    """For waits predicted at each `PUBLISHED` quantile, the share that was not longer."""

    shares: tuple[float | None, ...]
    waits: int


class ClassSnapshot(NamedTuple):
    """One class in one pool."""

    name: str
    weight: float
    share: float
    level: int
    held: bool
    """An operator holds the level."""
    level_changes: int
    active_tenants: int
    q95_wait_s: float | None
    new: CoverageSnapshot
    """Of requests on the new list."""
    in_turn: CoverageSnapshot


class PoolSnapshot(NamedTuple):
    """One pool of workers, and the requests queued for it."""

    name: str
    slots: int
    busy: int
    rate_tokens_per_s: float | None
    prefill_start_s: float
    prefill_s_per_token: float
    s_per_token: float
    next_slot_in_s: float
    requests: int
    cost_tokens: float
    active_tenants: int
    quantum_tokens: float
    classes: tuple[ClassSnapshot, ...]


class FlowForecast(NamedTuple):
    """What a new request of a flow would be judged by."""

    wait_s: float
    wait_q95_s: float
    wait_limit_s: float | None
    service_s: float | None
    answer_median_tokens: float | None
    answer_q90_tokens: float | None
    answers: int
    """Answers whose lengths are known."""


class FlowSnapshot(NamedTuple):
    """One tenant's queue in one class of one pool."""

    pool: str
    quantum_tokens: float
    class_name: str
    requests: int
    cost_tokens: float
    not_ready: int
    turn: RingPosition
    deficit_tokens: float
    """Negative: debt."""
    in_flight_tokens: float
    share: float
    asked_tokens_per_s: float
    got_tokens_per_s: float
    forecast: FlowForecast | None
    """In full snapshots only."""


class TenantSnapshot(NamedTuple):
    """One tenant and its queues, those in its own class first."""

    id: str
    configured: bool
    class_name: str
    weight: float
    waiting: UsageSnapshot
    running: int
    charged_tokens: float
    turn: RingPosition
    """Its position in the service order, if the caller passed one."""
    flows: tuple[FlowSnapshot, ...]
    heads: tuple[float, ...]
    """The first requests of its longest queue: the age of each as a share of its deadline."""


class TenantTotals(NamedTuple):
    """Sums over all tenants."""

    running: int
    charged_tokens: float


class SchedulerSnapshot(NamedTuple):
    """The scheduler at `now`."""

    now: float
    policies: Policies
    waiting: UsageSnapshot
    pools: tuple[PoolSnapshot, ...]
    tenants: tuple[TenantSnapshot, ...]
    known_tenants: int
    totals: TenantTotals | None
    """In full snapshots only."""
    finished_twice: int


# ---- taking one


def busiest(scheduler: Scheduler, limit: int) -> dict[TenantAccount, RingPosition]:
    """The `limit` tenants with most requests queued, then running, then most charged. One pass over all tenants."""
    return dict.fromkeys(nlargest(limit, scheduler.drr.tenants.values(), key=_activity), OUT)


def _activity(tenant: TenantAccount) -> tuple[int, int, float]:
    return tenant.usage.requests, tenant.running, tenant.charged


def in_service_order(
    scheduler: Scheduler, limit: int, busy: Callable[[], Iterable[Request]]
) -> dict[TenantAccount, RingPosition]:
    """The tenants in the order of their next starts, then by name those with nothing to start, as OUT.

    `busy`: requests that are queued or run. With more than `limit` tenants, only theirs are among the latter.
    """
    tenants, found = scheduler.drr.tenants, dict[TenantAccount, RingPosition]()
    for pool in scheduler.drr.pools.values():
        for tenant, turn in pool.discipline.tenants(limit) if pool.requests else ():
            if len(found) == limit:
                return found
            found.setdefault(tenant, turn)
    known: Iterable[TenantAccount] = tenants.values()
    if len(tenants) > limit:
        known = (tenants[request.tenant] for request in busy() if request.tenant in tenants)
    away = sorted({tenant for tenant in known if tenant not in found}, key=lambda tenant: tenant.id)
    return found | dict.fromkeys(away[: limit - len(found)], OUT)


def waiting_by(scheduler: Scheduler, label_of: Callable[[str], str]) -> dict[str, tuple[int, float]]:
    """Queued requests and their cost in tokens, summed by a label of their tenants. One pass over all tenants."""
    found: dict[str, tuple[int, float]] = {}
    for tenant in scheduler.drr.tenants.values():
        label = label_of(tenant.id)
        requests, cost = found.get(label, (0, 0.0))
        found[label] = (requests + tenant.usage.requests, cost + tenant.usage.cost_tokens)
    return found


def take(
    scheduler: Scheduler,
    now: float,
    tenants: Mapping[TenantAccount, RingPosition],
    *,
    heads: int = 0,
    full: bool = False,
) -> SchedulerSnapshot:
    """The snapshot, with these tenants described, and `heads` first requests of each one's longest queue."""
    usage, known = scheduler.usage, scheduler.drr.tenants
    totals = None
    if full:
        running, charged = (
            sum([each.running for each in known.values()]),
            sum([each.charged for each in known.values()], 0.0),
        )
        totals = TenantTotals(running, charged)
    return SchedulerSnapshot(
        now,
        scheduler.policies,
        UsageSnapshot(usage.requests, usage.cost_tokens, usage.bytes, usage.bounds),
        tuple([_pool(scheduler, now, pool_stats) for pool_stats in scheduler.pools.values()]),
        tuple([_tenant(scheduler, now, tenant, turn, heads, full) for tenant, turn in tenants.items()]),
        len(known),
        totals,
        scheduler.second_finishes,
    )


def _pool(scheduler: Scheduler, now: float, pool_stats: PoolStats) -> PoolSnapshot:
    pool, estimator = pool_stats.pool, pool_stats.estimator
    return PoolSnapshot(
        pool.name,
        estimator.slots,
        estimator.busy,
        estimator.rate,
        estimator.prefill_model.start_s,
        estimator.prefill_model.per_token_s,
        estimator.median_s,
        estimator.next_slot_s(now),
        pool.requests,
        pool.work,
        pool.active_flows,
        pool.quantum,
        tuple([_class(scheduler, pool_stats, node) for node in pool.nodes.values()]),
    )


def _class(scheduler: Scheduler, pool_stats: PoolStats, node: ClassNode) -> ClassSnapshot:
    class_stats = pool_stats.classes[node.name]
    return ClassSnapshot(
        node.name,
        node.weight,
        pool_stats.pool.class_share(node),
        scheduler.level(class_stats, node.name),
        scheduler.held(node.name) is not None,
        class_stats.controller.changes,
        node.active_flows,
        class_stats.recent_s.quantile(0.95),
        _coverage(class_stats.waits.new),
        _coverage(class_stats.waits.in_turn),
    )


def _coverage(calibration: WaitCalibration) -> CoverageSnapshot:
    coverage = calibration.coverage
    return CoverageSnapshot(tuple([coverage.share(q) for q in PUBLISHED]), coverage.total)


def _tenant(
    scheduler: Scheduler, now: float, tenant: TenantAccount, turn: RingPosition, heads: int, full: bool
) -> TenantSnapshot:
    usage = tenant.usage
    flows = [(pool, flow) for pool, flow in tenant.flows.items()]
    flows += [(pool, flow) for (pool, _), flow in tenant.others.items()]
    longest = max(tenant.all_flows(), key=_length, default=()) if heads else ()
    return TenantSnapshot(
        tenant.id,
        tenant.configured,
        tenant.class_name,
        tenant.weight,
        UsageSnapshot(usage.requests, usage.cost_tokens, usage.bytes, usage.bounds),
        tenant.running,
        tenant.charged,
        turn,
        tuple([_flow(scheduler, now, scheduler.pools[pool], flow, full) for pool, flow in flows]),
        tuple([of_deadline(now, request) for request in islice(longest, heads)]),
    )


def _length(flow: Flow) -> int:
    return flow.requests


def of_deadline(now: float, request: Request) -> float:
    """The request's age as a share of its deadline; at 1 it is too late."""
    return (now - request.arrived_at) / (request.deadline - request.arrived_at)


def _flow(scheduler: Scheduler, now: float, pool_stats: PoolStats, flow: Flow, full: bool) -> FlowSnapshot:
    pool, stats = pool_stats.pool, flow.stats
    return FlowSnapshot(
        pool.name,
        pool.quantum,
        flow.node.name,
        flow.requests,
        flow.work,
        len(flow.unready),
        flow.position,
        pool.discipline.deficit(now, flow),
        flow.unsettled,
        pool.share(flow),
        stats.asked.rate(now),
        stats.got.rate(now),
        _forecast(scheduler, now, pool_stats, flow) if full else None,
    )


def _forecast(scheduler: Scheduler, now: float, pool_stats: PoolStats, flow: Flow) -> FlowForecast:
    stats, measured = flow.stats, scheduler.settings.measured_rounds
    prediction = pool_stats.pool.discipline.predict_wait(now, flow, inf, pool_stats.estimator, measured_rounds=measured)
    wait_s, lengths = prediction.wait_s, stats.lengths
    return FlowForecast(
        wait_s,
        stats.waits.of(prediction.new).waits_s(wait_s)[-1],
        finite(stats.codel.limit_s),
        stats.service_s or None,
        _length_at(lengths, 0.5),
        _length_at(lengths, 0.9),
        lengths.samples,
    )


def _length_at(lengths: Lengths, q: float) -> float | None:
    return finite(lengths.at(q, inf)) if lengths.confident else None


def finite(value: float) -> float | None:
    """The value, or None if it is not finite."""
    return value if isfinite(value) else None
