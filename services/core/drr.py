"""Who is served next: hierarchical Deficit Round Robin over token cost, with bounds.

    pool of workers -> class (weights, a floor for each) -> tenant (weights) -> what is due first

Each inner node is a surplus round robin (`ring.py`), so each level keeps its own bounded gap and the gaps add. What a
class leaves unused goes to the other classes, what a tenant leaves to its class. A request is charged its estimated
cost when it starts and settled once when it ends, at both levels. With the settlement two equal tenants whose lengths
are unknown get equal work; without it the one whom the estimate flatters takes the rest.

Only what could start competes: a request whose retrieval still runs stands in its tenant's line, is counted in its
bounds, and is passed over. So is one that does not fit what is free now (`fits`).

A *tenant* is an account: its weight, its class, its bounds over all pools. Its line in one pool is a *flow*, with a
deficit of its own. Debt follows the tenant: on becoming active in one pool, a flow takes over what its siblings owe.
A request that asks for a class below its tenant's own stands in a flow there, and takes turns with that class.

Bounds, per tenant and in all: requests, cost and bytes that wait. All are required.
Cost: O(1) in the common case, O(log n) at worst, and a bulk jump instead of empty rounds. Idle tenants that were
not configured are forgotten, oldest first, after FORGET_AFTER_S or when `idle_tenants` are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from services.core.account import (
    PLATFORM_LIMITS,
    TENANT_LIMITS,
    ClassSpec,
    QueueBounds,
    QueueLimit,
    QueueUsage,
    TenantAccount,
    TenantSpec,
)
from services.core.discipline import DrrDiscipline, FifoDiscipline
from services.core.pool import ClassNode, Flow, PoolQueue
from services.core.request import ENDED, NEW, RUNNING, WAITING, Request
from services.core.stats import TenantStats

NewStats = Callable[[Flow, str], TenantStats]
"""A flow and the name of its pool -> empty statistics of its tenant there."""
FORGET_AFTER_S = 300.0
"""An unknown tenant's debt has halved five times by now."""


class Drr:
    """The scheduler of every pool. Its own ledger: what it holds is what waits."""

    __slots__ = (
        "_expiries",
        "_fresh",
        "_idle",
        "_new_stats",
        "_sequence",
        "_stale",
        "classes",
        "discipline",
        "idle_tenants",
        "own_bounds",
        "pools",
        "quantum",
        "tenants",
        "usage",
    )

    def __init__(
        self,
        *,
        quantum: float,
        bounds: QueueBounds,
        classes: tuple[ClassSpec, ...] = (),
        idle_tenants: int = 1000,
        new_stats: NewStats | None = None,
    ) -> None:
        """`new_stats`: what each new flow keeps as `stats`; without it flows keep none."""
        if not quantum > 0 or idle_tenants < 1:
            raise ValueError(f"quantum and idle_tenants must be above 0, got {quantum} and {idle_tenants}")
        self.quantum = quantum
        self.classes = classes or (ClassSpec("default"),)
        _check(self.classes)
        self.idle_tenants = idle_tenants
        self.discipline: type[DrrDiscipline] | type[FifoDiscipline] = DrrDiscipline
        self.own_bounds = True
        """Whether a tenant's own bounds are looked at, beside those of all."""
        self.usage = QueueUsage(bounds)
        self.tenants: dict[str, TenantAccount] = {}
        self.pools: dict[str, PoolQueue] = {}
        self._new_stats = new_stats
        self._sequence = 0
        self._expiries: list[tuple[float, int, Request]] = []
        self._fresh: list[Request] = []  # not in the heap yet: most of them start before it is looked at
        self._stale = 0  # entries of these two whose request no longer waits, or expires at another time
        self._idle: OrderedDict[TenantAccount, float] = OrderedDict()

    # ---- tenants

    def configure(self, spec: TenantSpec) -> TenantAccount:
        """Make a tenant that is kept, or change one, from here on.

        A weight counts at once, bounds at the next request. A class is that of the next request as well: those who
        wait keep the place that they were promised, and the tenant's line in its old class ends with them.
        """
        self._check_class(spec)
        tenant = self.tenants.get(spec.id)
        if tenant is None:
            tenant = self.tenants[spec.id] = TenantAccount(spec, configured=True)
        tenant.configured = True
        self._idle.pop(tenant, None)
        self._change(tenant, spec)
        return tenant

    def dismiss(self, now: float, spec: TenantSpec) -> bool:
        """A tenant that is kept no longer: it is as a stranger of this spec. False when it is not known."""
        self._check_class(spec)
        tenant = self.tenants.get(spec.id)
        if tenant is None:
            return False
        self._change(tenant, spec)
        if tenant.configured:
            tenant.configured = False
            self._rest(now, tenant)
        return True

    def reclass(self, now: float, classes: tuple[ClassSpec, ...]) -> None:
        """The classes from here on, in every pool. One that is gone stays for those who stand in it."""
        _check(classes)
        self.classes = classes
        for pool in self.pools.values():
            pool.reclass(now, classes)

    def create_stranger(self, now: float, spec: TenantSpec) -> TenantAccount:
        """Make a tenant that is not configured. It is forgotten some time after it has gone idle."""
        self._check_class(spec)
        if spec.id in self.tenants:
            raise ValueError(f"tenant {spec.id} is known already")
        tenant = self.tenants[spec.id] = TenantAccount(spec, configured=False)
        self._idle[tenant] = now
        return tenant

    def forget_idle(self, now: float) -> list[str]:
        """Forget idle tenants that are not configured: past their time, or too many. Returns their ids; O(1) each."""
        forgotten = []
        while self._idle:
            tenant, since = next(iter(self._idle.items()))
            if now - since < FORGET_AFTER_S and len(self._idle) <= self.idle_tenants:
                break
            del self._idle[tenant], self.tenants[tenant.id]
            forgotten.append(tenant.id)
        return forgotten

    # ---- waiting

    def enqueue(self, now: float, request: Request, flow: Flow | None = None) -> QueueLimit | None:
        """Put a request in line under `request.charge_tokens`; or say which bound keeps it out, and change nothing.

        `flow` is that of its tenant in its pool, where the caller has looked it up.
        """
        if request.stage is not NEW:
            raise RuntimeError(f"{request!r} has been in line before")
        if not 0 <= request.charge_tokens < inf:
            raise ValueError(f"{request!r} must cost 0 or more, and not without end: {request.charge_tokens}")
        tenant = self.tenants[request.tenant]
        own, all_usage = tenant.usage, self.usage
        if self.own_bounds and (broken := own.limit_exceeded_by(request)) is not None:
            return TENANT_LIMITS[broken]
        if (broken := all_usage.limit_exceeded_by(request)) is not None:
            return PLATFORM_LIMITS[broken]
        self._sequence = request.sequence = self._sequence + 1
        request.stage, request.queued_at = WAITING, now
        if not tenant.configured:
            self._idle.pop(tenant, None)
        own.take(request)
        all_usage.take(request)
        pool = self.pools.get(request.pool) or self.pool(request.pool)
        if flow is None:
            flow = self.flow(pool, tenant, request.class_name)
        request.flow = flow
        pool.insert(now, flow, request)
        self._fresh.append(request)
        return None

    def never_fits(self, request: Request) -> bool:
        """Whether it would break a bound even if nothing else waited."""
        own = self.own_bounds and self.tenants[request.tenant].usage.never_fits(request)
        return own or self.usage.never_fits(request)

    def postpone(self, request: Request, expires_at: float) -> None:
        """A request that waits expires then, and not when it would have."""
        if request.stage is WAITING and expires_at != request.expires_at:
            self._look_at_the_fresh()
            self._entry_is_stale()
            self._sequence += 1
            request.expires_at = expires_at
            heappush(self._expiries, (expires_at, self._sequence, request))

    def make_ready(self, now: float, request: Request) -> None:
        """It could start from now on: its retrieval is done. On one that does not wait, only the mark changes."""
        if request.ready or request.stage is not WAITING:
            request.ready = True
            return
        self.pools[request.pool].make_ready(now, request.flow, request)

    def reprice(self, now: float, request: Request, charge_tokens: float) -> None:
        """Change the estimate: its prompt has been counted. Waiting or running; one that has ended stays as it was."""
        if request.stage is WAITING:
            for usage in (request.flow.tenant.usage, self.usage):
                usage.give_back(request)
            self.pools[request.pool].reprice(request.flow, request, charge_tokens)
            for usage in (request.flow.tenant.usage, self.usage):
                usage.take(request)
        elif request.stage is RUNNING:
            self._put_right(now, request, charge_tokens)

    def discard(self, now: float, request: Request) -> bool:
        """Take a waiting request out. False when it does not wait."""
        if request.stage is not WAITING:
            return False
        self._take_out(now, request)
        self._entry_is_stale()
        return True

    def expire(self, now: float) -> list[Request]:
        """Take out and return those whose time has come, earliest first."""
        expired = []
        while self.wakes_at() <= now:
            at, _, request = heappop(self._expiries)
            assert at == request.expires_at <= now, f"{request!r} is taken out at {now:g}, noted for {at:g}"
            self._take_out(now, request)
            expired.append(request)
        return expired

    def wakes_at(self) -> float:
        """When `expire` next has something to do; infinity when nothing waits."""
        if self._fresh:
            self._look_at_the_fresh()
        expiries = self._expiries
        while expiries and not _stands(expiries[0]):
            heappop(expiries)
            self._stale -= 1
            assert self._stale >= 0, f"more entries are stale than were noted: {self!r}"
        return expiries[0][0] if expiries else inf

    # ---- serving

    def next(self, now: float, pool_name: str, fits: Callable[[Request], bool] | None = None) -> Request | None:
        """Whose turn it is among those that could start: taken out of line, charged to its flow and its class.

        With `fits`, a head for which it is false is passed over together with its line; O(n) in those passed over.
        """
        pool = self.pools.get(pool_name)
        if pool is None or not pool.classes.backlog:
            return None
        request = pool.discipline.first(fits)
        return None if request is None else self._start(now, pool, request)

    def settle(self, now: float, request: Request, actual_tokens: float) -> None:
        """It ended, having cost this much: give the difference back to its flow and class, or take it. Once."""
        if request.stage is not RUNNING:
            raise RuntimeError(f"{request!r} does not run, so there is nothing to settle")
        self._put_right(now, request, actual_tokens, ended=actual_tokens)
        request.stage = ENDED
        tenant = request.flow.tenant
        tenant.running -= 1
        assert tenant.running >= 0, f"{request!r} ended, and was not counted as running: {tenant!r}"
        if not tenant.configured:
            self._rest(now, tenant)

    def serve_by(self, now: float, discipline: type[DrrDiscipline] | type[FifoDiscipline]) -> None:
        """In this order from here on, in every pool, for the requests that wait as well."""
        if discipline is self.discipline:
            return
        self.discipline = discipline
        for pool in self.pools.values():
            pool.discipline = discipline(pool)
            pool.discipline.begin(
                now, [flow for tenant in self.tenants.values() for flow in tenant.lines_in(pool.name)]
            )

    def waiting(self) -> Iterator[Request]:
        """All who wait, tenant by tenant."""
        return (request for tenant in self.tenants.values() for flow in tenant.lines() for request in flow)

    # ---- what admission asks

    def pool(self, name: str) -> PoolQueue:
        """The pool of that name; made when it is first asked for. Names come from the worker list, not from clients."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = PoolQueue(name, self.quantum, self.classes)
            pool.discipline = self.discipline(pool)
        return pool

    def flow(self, pool: PoolQueue, tenant: TenantAccount, class_name: str = "") -> Flow:
        """The tenant's line in the pool, in its own class or in a lower one; made when it is first asked for."""
        if class_name and class_name != tenant.class_name:
            node = pool.node(tenant.class_name, class_name)
            if node.name != tenant.class_name:
                key = pool.name, node.name
                flow = tenant.others.get(key)
                if flow is None:
                    flow = tenant.others[key] = self._new_flow(pool, tenant, node)
                return flow
        flow = tenant.flows.get(pool.name)
        if flow is None:
            flow = tenant.flows[pool.name] = self._new_flow(pool, tenant, pool.nodes[tenant.class_name])
        return flow

    # ---- inside

    def _new_flow(self, pool: PoolQueue, tenant: TenantAccount, node: ClassNode) -> Flow:
        flow = Flow(tenant, node)
        if self._new_stats is not None:
            flow.stats = self._new_stats(flow, pool.name)
        return flow

    def _check_class(self, spec: TenantSpec) -> None:
        if all(spec.class_name != known.name for known in self.classes):
            raise ValueError(f"tenant {spec.id}: there is no class {spec.class_name}")

    def _change(self, tenant: TenantAccount, spec: TenantSpec) -> None:
        tenant.change(spec)
        for (name, _), flow in [*(((pool, ""), flow) for pool, flow in tenant.flows.items()), *tenant.others.items()]:
            self.pools[name].reweigh(flow, spec.weight)

    def _start(self, now: float, pool: PoolQueue, request: Request) -> Request:
        assert request.stage is WAITING, f"{request!r} starts, and does not wait"
        flow = request.flow
        tenant = flow.tenant
        pool.charge(flow, request.charge_tokens)
        pool.remove(now, flow, request)
        tenant.usage.give_back(request)
        self.usage.give_back(request)
        tenant.charged += request.charge_tokens
        tenant.running += 1
        request.stage, request.started_at = RUNNING, now
        self._entry_is_stale()
        return request

    def _put_right(self, now: float, request: Request, charge_tokens: float, ended: float = 0.0) -> None:
        flow, refund = request.flow, request.charge_tokens - charge_tokens
        request.charge_tokens = charge_tokens
        flow.tenant.charged -= refund
        self.pools[request.pool].settle(now, flow, refund, ended)

    def _take_out(self, now: float, request: Request) -> None:
        assert request.stage is WAITING, f"{request!r} leaves the line, and does not wait"
        tenant = request.flow.tenant
        self.pools[request.pool].remove(now, request.flow, request)
        tenant.usage.give_back(request)
        self.usage.give_back(request)
        request.stage = ENDED
        self._rest(now, tenant)

    def _rest(self, now: float, tenant: TenantAccount) -> None:
        if not tenant.configured and not tenant.busy:
            self._idle[tenant] = now

    def _look_at_the_fresh(self) -> None:
        """Those that still wait go into the heap."""
        for request in self._fresh:
            if request.stage is WAITING:
                heappush(self._expiries, (request.expires_at, request.sequence, request))
            else:
                self._stale -= 1
        self._fresh.clear()

    def _entry_is_stale(self) -> None:
        """One entry points at a request that left, or expires at another time; when most do, keep the others only."""
        self._stale += 1
        if self._stale > 64 + self.usage.requests:
            self._look_at_the_fresh()
            self._expiries = [entry for entry in self._expiries if _stands(entry)]
            heapify(self._expiries)
            self._stale = 0

    def __repr__(self) -> str:
        waiting = f"{self.usage.requests} requests wait ({self.usage.cost_tokens:g} tokens)"
        return f"<Drr {waiting}, {len(self.tenants)} tenants, {list(self.pools.values())}>"


def _stands(entry: tuple[float, int, Request]) -> bool:
    """Whether the request of an entry waits, and expires then."""
    return entry[2].stage is WAITING and entry[2].expires_at == entry[0]


def _check(classes: tuple[ClassSpec, ...]) -> None:
    if not classes or len({spec.name for spec in classes}) < len(classes) or not sum(s.floor for s in classes) < 1:
        raise ValueError(f"classes must differ in name, and their floors leave something over, got {classes}")
