"""What the router knows at one moment, for an operator's eyes: every number that a decision was made with.

Bounded, whatever the load: of tenants, of requests and of workers the first so many are shown, and the rest counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

from services.core.snapshot import state as core_state
from services.router.deciding.dispatcher import Dispatcher
from services.router.request import InferenceRequest
from services.router.tenancy.tenants import Tenants
from services.router.workers.worker import Worker

MOST_TENANTS = 100
MOST_TURNS = 100
MOST_WORKERS = 256


def state(now: float, dispatcher: Dispatcher, tenants: Tenants, *, draining: bool) -> dict[str, Any]:
    """Everything, as of now. Work is in token-equivalents."""
    fleet, cap = dispatcher.fleet, dispatcher.cap
    workers = [*fleet.workers, *fleet.leaving]
    running = [turn for worker in workers for turn in _turns(worker)]
    return {
        "draining": draining,
        "inflight": {"now": cap.inflight, "cap": cap.cap},
        "scheduler": core_state(dispatcher.scheduler, now, MOST_TENANTS),
        "paused": [id for id in tenants.ids() if (known := tenants.get(id)) is not None and known.paused],
        "workers": [_worker(worker) for worker in workers[:MOST_WORKERS]],
        "running": [_turn(now, turn) for turn in running[:MOST_TURNS]],
        "in_line": [_turn(now, turn) for turn in islice(dispatcher.waiting, MOST_TURNS)],
    }


def _turns(worker: Worker) -> Iterator[InferenceRequest]:
    return (cast(InferenceRequest, request) for request in worker.held)


def _worker(worker: Worker) -> dict[str, Any]:
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
        "limit": None if limit is None else {"now": limit.cap, "baseline_s": limit.baseline},
        "failures_in_a_row": worker.health.failures,
        "ejections": worker.health.ejections,
    }


def _turn(now: float, turn: InferenceRequest) -> dict[str, Any]:
    started = turn.started_at or None
    return {
        "id": turn.id,
        "tenant": turn.tenant,
        "model": turn.model,
        "level": turn.level,
        "stage": turn.stage.value,
        "ready": turn.ready,
        "worker": None if turn.worker is None else turn.worker.name,
        "age_ms": round((now - turn.arrived_at) * 1000, 1),
        "waited_ms": round(((started or now) - turn.queued_at) * 1000, 1),
        "predicted_wait_ms": round(turn.predicted_wait_s * 1000, 1),
        "deadline_in_ms": round((turn.deadline - now) * 1000, 1),
        "charge_tokens": round(turn.charge_tokens, 1),
        "granted_tokens": turn.granted_tokens,
        "retried": turn.retried,
    }
