"""Two lists of the console's frame, as projections of a snapshot: tenants in service order, and workers.

Bounds: MAX_TENANTS with MAX_HEADS queued requests each; MAX_WORKERS with MAX_RUNNING requests each and
MAX_RUNNING_TOTAL in all. Tenants with nothing to start follow the others, by name, as far as there is room.
"""

from __future__ import annotations

from services.contracts.console import Batch, OtherTenants, Position, RunningNow, TenantNow, WorkerNow
from services.core.schedulable import LATER, NEW, NEXT, NOW, OUT, RingPosition
from services.core.snapshot import FlowSnapshot, SchedulerSnapshot, TenantSnapshot
from services.router.deciding.dispatcher import Dispatcher
from services.router.telemetry.snapshot import RouterSnapshot, WorkerSnapshot, take, tenants_in_service_order

MAX_TENANTS = 24
MAX_HEADS = 32
MAX_WORKERS = 32
MAX_RUNNING = 32
MAX_RUNNING_TOTAL = 512

POSITIONS: dict[RingPosition, Position] = {NEW: "new", NOW: "now", NEXT: "next", LATER: "later", OUT: "away"}


def look(now: float, dispatcher: Dispatcher) -> RouterSnapshot:
    return take(
        now,
        dispatcher,
        tenants_in_service_order(dispatcher, MAX_TENANTS),
        heads=MAX_HEADS,
        workers=MAX_WORKERS,
        running=MAX_RUNNING_TOTAL,
        running_of_one=MAX_RUNNING,
    )


def tenant_row(tenant: TenantSnapshot, place: int) -> TenantNow:
    """One tenant, with the longest of its queues."""
    flow = max(tenant.flows, key=_length, default=None)
    deficit = 0.0 if flow is None else flow.deficit_tokens
    return TenantNow(
        id=tenant.id,
        class_name=tenant.class_name if flow is None else flow.class_name,
        weight=tenant.weight,
        waiting=tenant.waiting.requests,
        bound=tenant.waiting.bounds.requests,
        cost_tokens=round(tenant.waiting.cost_tokens, 1),
        deficit_tokens=round(max(0.0, deficit), 1),
        debt_tokens=round(max(0.0, -deficit), 1),
        quantum_tokens=0.0 if flow is None else round(flow.quantum_tokens * tenant.weight, 1),
        running=tenant.running,
        share=0.0 if flow is None else round(flow.share, 4),
        asked_tokens_per_s=round(sum(each.asked_tokens_per_s for each in tenant.flows), 1),
        got_tokens_per_s=round(sum(each.got_tokens_per_s for each in tenant.flows), 1),
        position=POSITIONS[tenant.turn],
        place=None if tenant.turn is OUT else place,
        heads=[round(head, 3) for head in tenant.heads],
    )


def _length(flow: FlowSnapshot) -> int:
    return flow.requests


def other_tenants(seen: SchedulerSnapshot) -> OtherTenants:
    shown = sum(tenant.waiting.requests for tenant in seen.tenants)
    return OtherTenants(seen.known_tenants - len(seen.tenants), seen.waiting.requests - shown)


def worker_row(worker: WorkerSnapshot) -> WorkerNow:
    return WorkerNow(
        name=worker.name,
        kind=worker.kind,
        healthy=worker.healthy,
        draining=worker.draining or worker.held_back,
        resting=worker.resting,
        leaving=worker.leaving,
        slots=worker.slots,
        lookahead=worker.lookahead,
        inflight=worker.inflight,
        work_tokens=round(worker.work_tokens, 1),
        batch=_batch(worker),
        requests=[RunningNow(each.id, each.tenant, round(each.of_deadline, 3)) for each in worker.requests],
    )


def _batch(worker: WorkerSnapshot) -> Batch:
    step_ms, report = round(worker.step_ms, 2) or None, worker.report
    if report is None:
        return Batch(worker.batch, step_ms)
    return Batch(worker.batch, step_ms, report.waiting, report.kv_share and round(report.kv_share, 3))
