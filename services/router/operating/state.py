"""The JSON of /admin/state: every number behind the decisions. A projection of one snapshot.

Bounded: MAX_TENANTS tenants, MAX_WORKERS workers, and MAX_REQUESTS each of running and queued requests; the remaining
tenants are summed. A value without a bound, or not known yet, is None.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from typing import Any

from services.core.account import QueueBounds
from services.core.calibration import PUBLISHED
from services.core.schedulable import OUT
from services.core.snapshot import (
    ClassSnapshot,
    CoverageSnapshot,
    FlowSnapshot,
    PoolSnapshot,
    SchedulerSnapshot,
    TenantSnapshot,
    UsageSnapshot,
    busiest,
    finite,
)
from services.router.deciding.dispatcher import Dispatcher
from services.router.telemetry.snapshot import RequestSnapshot, WorkerSnapshot, take
from services.router.tenancy.tenants import Tenants
from services.router.upstreams.enginepage import EngineReport

MAX_TENANTS = 100
MAX_REQUESTS = 100
MAX_WORKERS = 256

Json = dict[str, Any]


def state(now: float, dispatcher: Dispatcher, tenants: Tenants, *, draining: bool) -> Json:
    """The router at `now`. Work is in token-equivalents."""
    chosen = busiest(dispatcher.scheduler, MAX_TENANTS)
    seen = take(now, dispatcher, chosen, full=True, running=MAX_REQUESTS, waiting=MAX_REQUESTS)
    running = chain.from_iterable(worker.requests for worker in seen.workers)
    return {
        "draining": draining,
        "inflight": {"now": seen.inflight, "cap": seen.inflight_cap},
        "scheduler": scheduler_state(seen.scheduler),
        "paused": [id for id in tenants.ids() if (known := tenants.get(id)) is not None and known.paused],
        "workers": [_worker(worker) for worker in seen.workers[:MAX_WORKERS]],
        "running": [_request(request) for request in running],
        "in_line": [_request(request) for request in seen.waiting],
    }


def scheduler_state(seen: SchedulerSnapshot) -> Json:
    """The scheduler's part. `seen` must be a full snapshot."""
    return {
        "policies": asdict(seen.policies),
        "waiting": _waiting(seen.waiting) | {"bounds": _bounds(seen.waiting.bounds)},
        "pools": [_pool(pool) for pool in seen.pools],
        "tenants": [_tenant(tenant) for tenant in seen.tenants],
        "other_tenants": _others(seen),
        "finished_twice": seen.finished_twice,
    }


def _waiting(waiting: UsageSnapshot) -> Json:
    return {"requests": waiting.requests, "cost_tokens": waiting.cost_tokens, "bytes": waiting.bytes}


def _bounds(bounds: QueueBounds) -> Json:
    return {
        "requests": bounds.requests,
        "cost_tokens": finite(bounds.cost_tokens),
        "bytes": finite(bounds.bytes),
    }


def _pool(pool: PoolSnapshot) -> Json:
    return {
        "name": pool.name,
        "slots": pool.slots,
        "busy": pool.busy,
        "rate_tokens_per_s": pool.rate_tokens_per_s,
        "prefill_start_s": pool.prefill_start_s,
        "prefill_s_per_token": pool.prefill_s_per_token,
        "s_per_token": pool.s_per_token,
        "next_slot_in_s": pool.next_slot_in_s,
        "waiting": {"requests": pool.requests, "cost_tokens": pool.cost_tokens},
        "active_tenants": pool.active_tenants,
        "quantum_tokens": pool.quantum_tokens,
        "classes": [_class(each) for each in pool.classes],
    }


def _class(of: ClassSnapshot) -> Json:
    return {
        "name": of.name,
        "weight": of.weight,
        "share": of.share,
        "level": of.level,
        "held": of.held,
        "level_changes": of.level_changes,
        "active_tenants": of.active_tenants,
        "q95_wait_s": of.q95_wait_s,
        "predictions": {"new": _covered(of.new), "in_turn": _covered(of.in_turn)},
    }


def _covered(coverage: CoverageSnapshot) -> Json:
    shares = {f"q{100 * q:g}": share for q, share in zip(PUBLISHED, coverage.shares, strict=True)}
    return shares | {"waits": coverage.waits}


def _tenant(tenant: TenantSnapshot) -> Json:
    return {
        "id": tenant.id,
        "configured": tenant.configured,
        "class": tenant.class_name,
        "weight": tenant.weight,
        "waiting": _waiting(tenant.waiting) | {"bounds": _bounds(tenant.waiting.bounds)},
        "running": tenant.running,
        "charged_tokens": tenant.charged_tokens,
        "lines": [_flow(flow) for flow in tenant.flows],
    }


def _flow(flow: FlowSnapshot) -> Json:
    forecast = flow.forecast
    assert forecast is not None, f"{flow!r} is not of a full snapshot"
    return {
        "pool": flow.pool,
        "class": flow.class_name,
        "waiting": {"requests": flow.requests, "cost_tokens": flow.cost_tokens, "not_ready": flow.not_ready},
        "position": "away" if flow.turn is OUT else flow.turn.value,
        "deficit_tokens": max(0.0, flow.deficit_tokens),
        "debt_tokens": max(0.0, -flow.deficit_tokens),
        "in_flight_tokens": max(0.0, flow.in_flight_tokens),
        "share": flow.share,
        "predicted_wait_s": forecast.wait_s,
        "predicted_wait_q95_s": forecast.wait_q95_s,
        "wait_limit_s": forecast.wait_limit_s,
        "asked_tokens_per_s": flow.asked_tokens_per_s,
        "got_tokens_per_s": flow.got_tokens_per_s,
        "service_s": forecast.service_s,
        "answer_tokens": {
            "median": forecast.answer_median_tokens,
            "q90": forecast.answer_q90_tokens,
            "samples": forecast.answers,
        },
    }


def _others(seen: SchedulerSnapshot) -> Json:
    """The sums over the tenants that are not listed."""
    shown, waiting, totals = seen.tenants, seen.waiting, seen.totals
    assert totals is not None, "only a full snapshot knows the sums over all tenants"
    return {
        "tenants": seen.known_tenants - len(shown),
        "waiting": {
            "requests": waiting.requests - sum(tenant.waiting.requests for tenant in shown),
            "cost_tokens": max(0.0, waiting.cost_tokens - sum(tenant.waiting.cost_tokens for tenant in shown)),
            "bytes": waiting.bytes - sum(tenant.waiting.bytes for tenant in shown),
        },
        "running": totals.running - sum(tenant.running for tenant in shown),
        "charged_tokens": totals.charged_tokens - sum(tenant.charged_tokens for tenant in shown),
    }


def _worker(worker: WorkerSnapshot) -> Json:
    limit = worker.limit
    return {
        "name": worker.name,
        "kind": worker.kind,
        "models": worker.models,
        "pools": worker.pools,
        "healthy": worker.healthy,
        "draining": worker.draining,
        "held_back": worker.held_back,
        "leaving": worker.leaving,
        "resting": worker.resting,
        "slots": worker.slots,
        "lookahead": worker.lookahead,
        "inflight": worker.inflight,
        "work_tokens": round(worker.work_tokens, 1),
        "kv_tokens": worker.kv_tokens,
        "kv_held_tokens": worker.kv_held_tokens,
        "limit": None if limit is None else {"now": limit.now, "baseline_s": limit.baseline_s},
        "engine": None if worker.report is None else _engine(worker.report, strained=worker.strained),
        "failures_in_a_row": worker.failures_in_a_row,
        "ejections": worker.ejections,
    }


def _engine(report: EngineReport, *, strained: bool) -> Json:
    return {
        "name": report.engine,
        "running": report.running,
        "waiting": report.waiting,
        "kv_share": None if report.kv_share is None else round(report.kv_share, 4),
        "kv_tokens": report.kv_tokens,
        "preemptions": report.preemptions,
        "slots": report.slots,
        "strained": strained,
    }


def _request(request: RequestSnapshot) -> Json:
    return {
        "id": request.id,
        "tenant": request.tenant,
        "model": request.model,
        "level": request.level,
        "stage": request.stage,
        "ready": request.ready,
        "worker": request.worker,
        "age_ms": round(request.age_s * 1000, 1),
        "waited_ms": round(request.waited_s * 1000, 1),
        "predicted_wait_ms": round(request.predicted_wait_s * 1000, 1),
        "deadline_in_ms": round(request.deadline_in_s * 1000, 1),
        "charge_tokens": round(request.charge_tokens, 1),
        "granted_tokens": request.granted_tokens,
        "retried": request.retried,
    }
