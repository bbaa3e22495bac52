"""What a Weir is doing, for people to look at: plain dictionaries, numbers and names, ready for JSON.

Looking changes nothing, not even when an estimate is refreshed: a house that is watched decides as one that is not.
And it is bounded: of the tenants, the `most` with most in line are told one by one, and all others as one sum. What
has no bound, or is not known yet, is None. Cost: one pass over the tenants, and a few microseconds for each that is
told: with a thousand of them under two milliseconds.
"""

from __future__ import annotations

from dataclasses import asdict
from heapq import nlargest
from math import inf, isfinite
from typing import Any

from services.core.account import Bounds, Tenant, Usage
from services.core.calibration import PUBLISHED, Calibration
from services.core.cost import Lengths
from services.core.learned import PoolStats
from services.core.member import OUT
from services.core.pool import ClassNode, Flow
from services.core.scheduler import Scheduler

MOST_TENANTS = 50
State = dict[str, Any]


def state(scheduler: Scheduler, now: float, most: int = MOST_TENANTS) -> State:
    """Everything, as of now."""
    known = scheduler.drr.tenants.values()
    told = nlargest(most, known, key=_matters)
    return {
        "policies": asdict(scheduler.policies),
        "waiting": _usage(scheduler.drr.usage),
        "pools": [_pool(scheduler, now, pool_stats) for pool_stats in scheduler.pools.values()],
        "tenants": [_tenant(scheduler, now, tenant) for tenant in told],
        "other_tenants": _others(scheduler, told),
        "finished_twice": scheduler.second_finishes,
    }


def _matters(tenant: Tenant) -> tuple[int, int, float]:
    return tenant.usage.requests, tenant.running, tenant.charged


# ---- a pool


def _pool(scheduler: Scheduler, now: float, pool_stats: PoolStats) -> State:
    pool, estimator = pool_stats.pool, pool_stats.estimator
    return {
        "name": pool.name,
        "slots": estimator.slots,
        "busy": estimator.busy,
        "rate_tokens_per_s": estimator.rate,
        "prefill_start_s": estimator.reading.start_s,
        "prefill_s_per_token": estimator.reading.per_token_s,
        "s_per_token": estimator.median_s,
        "next_slot_in_s": estimator.next_slot_s(now),
        "waiting": {"requests": pool.requests, "cost_tokens": pool.work},
        "active_tenants": pool.active_flows,
        "quantum_tokens": pool.quantum,
        "classes": [_class(scheduler, pool_stats, node) for node in pool.nodes.values()],
    }


def _class(scheduler: Scheduler, pool_stats: PoolStats, node: ClassNode) -> State:
    class_stats = pool_stats.classes[node.name]
    return {
        "name": node.name,
        "weight": node.weight,
        "share": pool_stats.pool.class_share(node),
        "level": scheduler.level(class_stats, node.name),
        "held": scheduler.held(node.name) is not None,
        "level_changes": class_stats.controller.changes,
        "active_tenants": node.active_flows,
        "q95_wait_s": class_stats.recent_s.quantile(0.95),
        "predictions": {"new": _covered(class_stats.waits.new), "in_turn": _covered(class_stats.waits.turn)},
    }


def _covered(calibration: Calibration) -> State:
    """Of the waits that were predicted at each quantile, the share that turned out no longer."""
    covered: State = {f"q{100 * q:g}": calibration.coverage.share(q) for q in PUBLISHED}
    return covered | {"waits": calibration.coverage.total}


# ---- a tenant


def _tenant(scheduler: Scheduler, now: float, tenant: Tenant) -> State:
    return {
        "id": tenant.id,
        "configured": tenant.configured,
        "class": tenant.class_name,
        "weight": tenant.weight,
        "waiting": _usage(tenant.usage),
        "running": tenant.running,
        "charged_tokens": tenant.charged,
        "lines": [_line(scheduler, now, pool, flow) for pool, flow in _lines(scheduler, tenant)],
    }


def _lines(scheduler: Scheduler, tenant: Tenant) -> list[tuple[PoolStats, Flow]]:
    """Its lines in its own class first."""
    own = [(scheduler.pools[pool], flow) for pool, flow in tenant.flows.items()]
    return own + [(scheduler.pools[pool], flow) for (pool, _), flow in tenant.others.items()]


def _line(scheduler: Scheduler, now: float, pool_stats: PoolStats, flow: Flow) -> State:
    pool, tenant_stats = pool_stats.pool, flow.stats
    standing = pool.discipline.deficit(now, flow)
    view = pool.discipline.predict_wait(
        now, flow, inf, pool_stats.estimator, measured_rounds=scheduler.settings.measured_rounds
    )
    errors = tenant_stats.waits.of(view.new)
    return {
        "pool": pool.name,
        "class": flow.node.name,
        "waiting": {"requests": flow.requests, "cost_tokens": flow.work, "not_ready": len(flow.unready)},
        "position": "away" if flow.turn is OUT else flow.turn.value,
        "deficit_tokens": max(0.0, standing),
        "debt_tokens": max(0.0, -standing),
        "in_flight_tokens": max(0.0, flow.unsettled),
        "share": pool.share(flow),
        "predicted_wait_s": view.wait_s,
        "predicted_wait_q95_s": errors.waits_s(view.wait_s)[-1],
        "wait_limit_s": _finite(tenant_stats.codel.limit_s),
        "asked_tokens_per_s": tenant_stats.asked.rate(now),
        "got_tokens_per_s": tenant_stats.got.rate(now),
        "service_s": tenant_stats.service_s or None,
        "answer_tokens": _lengths(tenant_stats.lengths),
    }


def _lengths(lengths: Lengths) -> State:
    median, q90 = (_finite(lengths.at(q, inf)) if lengths.confident else None for q in (0.5, 0.9))
    return {"median": median, "q90": q90, "samples": lengths.samples}


def _others(scheduler: Scheduler, told: list[Tenant]) -> State:
    """The sum of all who were not told one by one."""
    drr, known = scheduler.drr, scheduler.drr.tenants.values()
    return {
        "tenants": len(known) - len(told),
        "waiting": {
            "requests": drr.usage.requests - sum(tenant.usage.requests for tenant in told),
            "cost_tokens": max(0.0, drr.usage.cost_tokens - sum(tenant.usage.cost_tokens for tenant in told)),
            "bytes": drr.usage.bytes - sum(tenant.usage.bytes for tenant in told),
        },
        "running": sum([tenant.running for tenant in known]) - sum(tenant.running for tenant in told),
        "charged_tokens": sum([tenant.charged for tenant in known]) - sum(tenant.charged for tenant in told),
    }


def _usage(usage: Usage) -> State:
    return {
        "requests": usage.requests,
        "cost_tokens": usage.cost_tokens,
        "bytes": usage.bytes,
        "bounds": _bounds(usage.bounds),
    }


def _bounds(bounds: Bounds) -> State:
    return {
        "requests": bounds.requests,
        "cost_tokens": _finite(bounds.cost_tokens),
        "bytes": _finite(bounds.bytes),
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
