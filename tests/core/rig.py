"""A scheduler with tenants, and requests for it, in one line each."""

from __future__ import annotations

from itertools import count
from math import inf

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.drr import Drr
from services.core.request import Request
from services.core.ring import Ring

NO_BOUNDS = QueueBounds(10**9)
FOR_EVER = 1e9

ids = count()


def asking(
    tenant: str,
    cost: float = 10.0,
    *,
    deadline: float = FOR_EVER,
    expires_at: float | None = None,
    size: int = 0,
    pool: str = "default",
    ready: bool = True,
) -> Request:
    """A request that is estimated to cost this much."""
    made = Request(next(ids), tenant, 0.0, deadline, 1, 1, bytes=size, pool=pool, ready=ready)
    made.charge_tokens = cost
    made.expires_at = deadline if expires_at is None else expires_at
    return made


def charged_so_far(request: Request) -> float:
    """What its tenant has been charged for a running request."""
    return request.charge_tokens - request.deferred_tokens


def house(
    tenants: str | dict[str, float] = "",
    *,
    quantum: float = 10.0,
    bounds: QueueBounds = NO_BOUNDS,
    own: QueueBounds = NO_BOUNDS,
    classes: tuple[ClassSpec, ...] = (),
    idle_tenants: int = 1000,
) -> Drr:
    """A scheduler; `tenants` are one letter each, or names with weights."""
    made = Drr(quantum=quantum, bounds=bounds, classes=classes, idle_tenants=idle_tenants)
    weights = tenants if isinstance(tenants, dict) else dict.fromkeys(tenants, 1.0)
    for tenant, weight in weights.items():
        made.configure(TenantSpec(tenant, own, weight=weight))
    return made


def enqueue(drr: Drr, *requests: Request, now: float = 0.0) -> list[Request]:
    """All of them find a place."""
    for request in requests:
        assert drr.enqueue(now, request) is None
    return list(requests)


def start(drr: Drr, now: float = 0.0, pool: str = "default") -> Request:
    """The next one starts; there is one."""
    request = drr.next(now, pool)
    assert request is not None
    return request


def serve(drr: Drr, count: int, now: float = 0.0, pool: str = "default") -> str:
    """So many start and end at their estimate, one after the other; whose they were."""
    served = ""
    for _ in range(count):
        request = start(drr, now, pool)
        drr.settle(now, request, request.charge_tokens)
        served += request.tenant
    return served


def standing(drr: Drr, tenant: str, now: float = 0.0, pool: str = "default") -> float:
    """The deficit of the tenant's flow in this pool."""
    flow = drr.tenants[tenant].flows[pool]
    return flow.node.flows.deficit_at(now, flow)


def kept(drr: Drr) -> dict[str, float]:
    """All that the scheduler still holds; empty when nothing is left."""
    pools = drr.pools.values()
    of_classes = [pool.classes for pool in pools]
    rings = [node.flows for pool in pools for node in pool.nodes.values()]
    rings += [ring for ring in of_classes if isinstance(ring, Ring)]  # type: ignore[misc]  # of other members
    held = {
        "tenants": len(drr.tenants),
        "requests": drr.usage.requests,
        "cost": drr.usage.cost_tokens,
        "bytes": drr.usage.bytes,
        "idle": len(drr._idle),
        "in rings": sum(len(ring._new) + len(ring._now) + len(ring._next) for ring in rings),
        "debtors": sum(ring._awaited(entry) for ring in rings for entry in ring._later),
        "backlog": sum(ring.backlog for ring in [*rings, *of_classes]),
        "waiting": sum(pool.requests for pool in pools),
        "work": sum(pool.work for pool in pools),
        "round work": sum(pool.round_work for pool in pools),
        "active": sum(pool.active_flows + pool.active_weight + len(pool._lingering) for pool in pools),
        "wakes": 0.0 if drr.wakes_at() == inf else 1.0,
        "expiries": len(drr._expiries),
    }
    return {name: much for name, much in held.items() if much}
