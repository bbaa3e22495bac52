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
from services.core.admission import outlook
from services.core.calibration import PUBLISHED, Calibration
from services.core.cost import Lengths
from services.core.learned import OfPool
from services.core.member import OUT
from services.core.pool import ClassNode, Flow
from services.core.weir import Weir

MOST_TENANTS = 50
State = dict[str, Any]


def state(weir: Weir, now: float, most: int = MOST_TENANTS) -> State:
    """Everything, as of now."""
    known = weir.drr.tenants.values()
    told = nlargest(most, known, key=_matters)
    return {
        "policies": asdict(weir.settings.policies),
        "waiting": _usage(weir.drr.usage),
        "pools": [_pool(weir, now, of_pool) for of_pool in weir.learned.values()],
        "tenants": [_tenant(weir, now, tenant) for tenant in told],
        "other_tenants": _others(weir, told),
        "finished_twice": weir.second_finishes,
    }


def _matters(tenant: Tenant) -> tuple[int, int, float]:
    return tenant.usage.requests, tenant.running, tenant.charged


# ---- a pool


def _pool(weir: Weir, now: float, of_pool: OfPool) -> State:
    pool, estimator = of_pool.pool, of_pool.estimator
    return {
        "name": pool.name,
        "slots": estimator.slots,
        "busy": estimator.busy,
        "rate_tokens_per_s": estimator.rate,
        "prefill_start_s": estimator.reading.start_s,
        "prefill_s_per_token": estimator.reading.per_token_s,
        "s_per_token": estimator.median_s,
        "next_slot_in_s": estimator.residual_s(now),
        "waiting": {"requests": pool.requests, "cost_tokens": pool.work},
        "active_tenants": pool.active_flows,
        "quantum_tokens": pool.quantum,
        "classes": [_class(weir, of_pool, node) for node in pool.nodes.values()],
    }


def _class(weir: Weir, of_pool: OfPool, node: ClassNode) -> State:
    of_class = of_pool.classes[node.name]
    return {
        "name": node.name,
        "weight": node.weight,
        "share": of_pool.pool.class_share(node),
        "level": weir.level(of_class, node.name),
        "held": weir.held(node.name) is not None,
        "level_changes": of_class.controller.changes,
        "active_tenants": node.active_flows,
        "q95_wait_s": of_class.recent_s.quantile(0.95),
        "predictions": {"new": _covered(of_class.waits.new), "in_turn": _covered(of_class.waits.turn)},
    }


def _covered(calibration: Calibration) -> State:
    """Of the waits that were predicted at each quantile, the share that turned out no longer."""
    covered: State = {f"q{100 * q:g}": calibration.coverage.share(q) for q in PUBLISHED}
    return covered | {"waits": calibration.coverage.total}


# ---- a tenant


def _tenant(weir: Weir, now: float, tenant: Tenant) -> State:
    return {
        "id": tenant.id,
        "configured": tenant.configured,
        "class": tenant.class_name,
        "weight": tenant.weight,
        "waiting": _usage(tenant.usage),
        "running": tenant.running,
        "charged_tokens": tenant.charged,
        "lines": [_line(weir, now, pool, flow) for pool, flow in _lines(weir, tenant)],
    }


def _lines(weir: Weir, tenant: Tenant) -> list[tuple[OfPool, Flow]]:
    """Its lines in its own class first."""
    own = [(weir.learned[pool], flow) for pool, flow in tenant.flows.items()]
    return own + [(weir.learned[pool], flow) for (pool, _), flow in tenant.others.items()]


def _line(weir: Weir, now: float, of_pool: OfPool, flow: Flow) -> State:
    pool, of_tenant = of_pool.pool, flow.learned
    standing = flow.node.flows.standing(now, flow) if weir.settings.policies.fairness else 0.0  # it decides nothing
    view = outlook(now, pool, flow, inf, of_pool.estimator, measured_rounds=weir.settings.measured_rounds)
    errors = of_tenant.waits.of(view.new)
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
        "wait_limit_s": _finite(of_tenant.standing.limit_s),
        "asked_tokens_per_s": of_tenant.asked.rate(now),
        "got_tokens_per_s": of_tenant.got.rate(now),
        "service_s": of_tenant.service_s or None,
        "answer_tokens": _lengths(of_tenant.lengths),
    }


def _lengths(lengths: Lengths) -> State:
    median, q90 = (_finite(lengths.at(q, inf)) if lengths.confident else None for q in (0.5, 0.9))
    return {"median": median, "q90": q90, "samples": lengths.samples}


def _others(weir: Weir, told: list[Tenant]) -> State:
    """The sum of all who were not told one by one."""
    drr, known = weir.drr, weir.drr.tenants.values()
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
