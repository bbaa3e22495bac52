"""The router at one moment, as immutable values.

/admin/state (`operating/state.py`), the console's frame (`console/feed.py`) and the gauges (`holdings.py`) are
projections of it. `take` is bounded by its arguments: single tenants, workers and requests. The rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import NamedTuple, cast

from services.core.account import TenantAccount
from services.core.request import Request
from services.core.schedulable import RingPosition
from services.core.snapshot import SchedulerSnapshot, in_service_order, of_deadline
from services.core.snapshot import take as take_of_scheduler
from services.router.deciding.dispatcher import Dispatcher
from services.router.request import InferenceRequest
from services.router.upstreams.enginepage import EngineReport
from services.router.workers.worker import Worker

LOOKED_AT = 512
"""How many queued and running requests are searched for tenants that have nothing to start."""


class RequestSnapshot(NamedTuple):
    """A queued or running request. Times are in seconds."""

    id: str
    tenant: str
    of_deadline: float
    """Its age as a share of its deadline."""
    model: str
    level: int
    stage: str
    ready: bool
    worker: str | None
    age_s: float
    waited_s: float
    predicted_wait_s: float
    deadline_in_s: float
    charge_tokens: float
    granted_tokens: int | None
    """None: no limit."""
    retried: bool


class LimitSnapshot(NamedTuple):
    """A learned concurrency limit."""

    now: int
    baseline_s: float


class WorkerSnapshot(NamedTuple):
    name: str
    kind: str
    models: tuple[str, ...]
    pools: tuple[str, ...]
    healthy: bool
    draining: bool
    held_back: bool
    leaving: bool
    resting: bool
    slots: int
    lookahead: int
    inflight: int
    work_tokens: float
    kv_tokens: int | None
    kv_held_tokens: int
    limit: LimitSnapshot | None
    failures_in_a_row: int
    ejections: int
    batch: int | None
    step_ms: float
    report: EngineReport | None
    strained: bool
    requests: tuple[RequestSnapshot, ...]


class RouterSnapshot(NamedTuple):
    now: float
    inflight: int
    inflight_cap: int
    scheduler: SchedulerSnapshot
    workers: tuple[WorkerSnapshot, ...]
    other_workers: int
    """Workers that `workers` leaves out."""
    waiting: tuple[RequestSnapshot, ...]


def take(
    now: float,
    dispatcher: Dispatcher,
    tenants: Mapping[TenantAccount, RingPosition],
    *,
    heads: int = 0,
    full: bool = False,
    workers: int | None = None,
    running: int = 0,
    running_of_one: int | None = None,
    waiting: int = 0,
) -> RouterSnapshot:
    """Take the snapshot.

    `tenants`, `heads` and `full` are passed to the scheduler's snapshot. `workers`: at most so many (None: all), with
    at most `running` requests in all and `running_of_one` each. `waiting`: at most so many queued requests.
    """
    fleet, cap = dispatcher.fleet, dispatcher.cap
    found: list[WorkerSnapshot] = []
    for worker in islice(chain(fleet.workers, fleet.leaving), workers):
        held = islice(worker.held, running if running_of_one is None else min(running, running_of_one))
        found.append(_worker(worker, tuple([_request(now, cast(InferenceRequest, request)) for request in held])))
        running -= len(found[-1].requests)
    return RouterSnapshot(
        now,
        cap.inflight,
        cap.cap,
        take_of_scheduler(dispatcher.scheduler, now, tenants, heads=heads, full=full),
        tuple(found),
        len(fleet.workers) + len(fleet.leaving) - len(found),
        tuple([_request(now, request) for request in islice(dispatcher.waiting, waiting)]),
    )


def tenants_in_service_order(dispatcher: Dispatcher, limit: int) -> dict[TenantAccount, RingPosition]:
    """Tenants in the order in which their requests start; then, up to `limit`, those with nothing to start now."""

    def busy() -> Iterable[Request]:
        held = (request for worker in dispatcher.fleet.workers for request in worker.held)
        return chain(islice(dispatcher.waiting, LOOKED_AT), islice(held, LOOKED_AT))

    return in_service_order(dispatcher.scheduler, limit, busy)


def _worker(worker: Worker, requests: tuple[RequestSnapshot, ...]) -> WorkerSnapshot:
    limit, health = worker.limit, worker.health
    return WorkerSnapshot(
        worker.name,
        worker.kind,
        worker.models,
        worker.pools,
        health.up,
        worker.draining,
        worker.held_back,
        worker.leaving,
        worker.resting,
        worker.own_slots,
        worker.lookahead,
        worker.inflight,
        worker.work_tokens,
        worker.kv_tokens,
        worker.kv_held_tokens,
        None if limit is None else LimitSnapshot(limit.cap, limit.baseline),
        health.failures,
        health.ejections,
        worker.batch,
        worker.step_ms,
        worker.engine.report,
        worker.strained,
        requests,
    )


def _request(now: float, request: InferenceRequest) -> RequestSnapshot:
    return RequestSnapshot(
        str(request.id),
        request.tenant,
        of_deadline(now, request),
        request.model,
        request.level,
        request.stage.value,
        request.ready,
        None if request.worker is None else request.worker.name,
        now - request.arrived_at,
        (request.started_at or now) - request.queued_at,
        request.predicted_wait_s,
        request.deadline - now,
        request.charge_tokens,
        request.granted_limit,
        request.retried,
    )
