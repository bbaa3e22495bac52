"""Who waits, in the order in which the scheduler will visit them, and who runs where: two lists of the console's frame.

Bounds: MOST_TENANTS in order, and of each the first MOST_HEADS in line; MOST_WORKERS, and of each MOST_RUNNING, and
MOST_RUNNING_IN_ALL. Whoever has nothing that could start now is told after those in turn, by name, as far as there is
room; with more tenants than MOST_TENANTS only those who wait or run, found among LOOKED_AT requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import cast

from services.contracts.console import Batch, OtherTenants, Position, RunningNow, TenantNow, WorkerNow
from services.core.account import Tenant
from services.core.member import LATER, NEW, NEXT, NOW, Turn
from services.core.pool import Flow, Pool
from services.core.request import Request
from services.core.scheduler import Scheduler
from services.router.deciding.dispatcher import Dispatcher
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker

MOST_TENANTS = 24
MOST_HEADS = 32
MOST_WORKERS = 32
MOST_RUNNING = 32
MOST_RUNNING_IN_ALL = 512
LOOKED_AT = 512

POSITIONS: dict[Turn, Position] = {NEW: "new", NOW: "now", NEXT: "next", LATER: "later"}

Told = dict[Tenant, Position]
"""Those who are told, in order."""


# ---- tenants


def told_tenants(dispatcher: Dispatcher) -> Told:
    """Whose turn it is, and so on; then those who are away."""
    drr = dispatcher.scheduler.drr
    told: Told = {}
    waited_for = (pool for pool in drr.pools.values() if pool.requests)
    for tenant, turn in chain.from_iterable(pool.discipline.tenants(MOST_TENANTS) for pool in waited_for):
        if len(told) == MOST_TENANTS:
            return told
        told.setdefault(tenant, POSITIONS[turn])
    if len(drr.tenants) <= MOST_TENANTS:
        away = {tenant for tenant in drr.tenants.values() if tenant not in told}
    else:
        away = {tenant for tenant in _busy(dispatcher) if tenant not in told}
    for tenant in sorted(away, key=_id)[: MOST_TENANTS - len(told)]:
        told[tenant] = "away"
    return told


def _id(tenant: Tenant) -> str:
    return tenant.id


def _busy(dispatcher: Dispatcher) -> Iterator[Tenant]:
    """Tenants of requests that wait or run."""
    held = (request for worker in dispatcher.fleet.workers for request in worker.held)
    known = dispatcher.scheduler.drr.tenants
    for request in chain(islice(dispatcher.waiting, LOOKED_AT), islice(held, LOOKED_AT)):
        tenant = known.get(request.tenant)
        if tenant is not None:
            yield tenant


def tenants_in_turn(now: float, scheduler: Scheduler, told: Told) -> list[TenantNow]:
    """The rows of those who are told."""
    return [_tenant(now, scheduler, tenant, position, place) for place, (tenant, position) in enumerate(told.items())]


def _tenant(now: float, scheduler: Scheduler, tenant: Tenant, position: Position, place: int) -> TenantNow:
    usage, lines = tenant.usage, list(tenant.lines())
    line = max(lines, key=_waiting, default=None)
    pool = None if line is None else _pool_of(scheduler, tenant, line)
    standing = 0.0 if line is None or pool is None else pool.discipline.deficit(now, line)
    learned = [each.stats for each in lines]
    heads = [] if line is None else [of_deadline(now, request) for request in islice(line, MOST_HEADS)]
    return TenantNow(
        id=tenant.id,
        class_name=tenant.class_name if line is None else line.node.name,
        weight=tenant.weight,
        waiting=usage.requests,
        bound=usage.bounds.requests,
        cost_tokens=round(usage.cost_tokens, 1),
        deficit_tokens=round(max(0.0, standing), 1),
        debt_tokens=round(max(0.0, -standing), 1),
        quantum_tokens=0.0 if pool is None else round(pool.quantum * tenant.weight, 1),
        running=tenant.running,
        share=0.0 if pool is None or line is None else round(pool.share(line), 4),
        asked_tokens_per_s=round(sum(of.asked.rate(now) for of in learned), 1),
        got_tokens_per_s=round(sum(of.got.rate(now) for of in learned), 1),
        position=position,
        place=None if position == "away" else place,
        heads=heads,
    )


def _waiting(line: Flow) -> int:
    return line.requests


def _pool_of(scheduler: Scheduler, tenant: Tenant, line: Flow) -> Pool:
    own = (pool for pool, flow in tenant.flows.items() if flow is line)
    other = (pool for (pool, _), flow in tenant.others.items() if flow is line)
    return scheduler.drr.pools[next(chain(own, other))]


def of_deadline(now: float, request: Request) -> float:
    """Its age as a share of its deadline: 1 is too late."""
    return round((now - request.arrived_at) / (request.deadline - request.arrived_at), 3)


def other_tenants(scheduler: Scheduler, told: Told) -> OtherTenants:
    """Those who are not told."""
    drr = scheduler.drr
    shown = sum(tenant.usage.requests for tenant in told)
    return OtherTenants(len(drr.tenants) - len(told), drr.usage.requests - shown)


# ---- workers


def workers_now(now: float, fleet: Fleet) -> tuple[list[WorkerNow], int]:
    """The first of the workers, and how many there are beside them."""
    workers = [*fleet.workers, *fleet.leaving]
    rows, left = [], MOST_RUNNING_IN_ALL
    for worker in workers[:MOST_WORKERS]:
        rows.append(_worker(now, worker, min(left, MOST_RUNNING)))
        left -= len(rows[-1].requests)
    return rows, len(workers) - len(rows)


def _worker(now: float, worker: Worker, most: int) -> WorkerNow:
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
        batch=Batch(worker.batch, round(worker.step_ms, 2) or None),
        requests=[
            RunningNow(cast(str, request.id), request.tenant, of_deadline(now, request))
            for request in islice(worker.held, most)
        ],
    )
