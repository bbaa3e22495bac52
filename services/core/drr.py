"""Hierarchical deficit round robin over token cost: docs/architecture/mechanisms/fairness.md.

    pool of workers -> class (weights, a floor for each) -> tenant (weights) -> earliest deadline

Each inner node is a surplus round robin (`ring.py`), so each level has its own bounded gap, and the gaps add. A
*tenant* is an account over all pools. Its queue in one class of one pool is a *flow*, with a deficit of its own. When a
flow becomes active it takes over the debt of the tenant's idle flows in the same class of other pools. A request for a
class below its tenant's own is queued in a flow of that class. A request whose retrieval runs, or that does not fit
what is free (`fits`), counts in the bounds and is skipped. Cost: O(1) in the common case, O(log n) at worst.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
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
from services.core.expiries import Expiries
from services.core.pool import ClassNode, Flow, PoolQueue
from services.core.request import ENDED, NEW, RUNNING, WAITING, Request
from services.core.stats import TenantStats

NewStats = Callable[[Flow, str], TenantStats]
"""Makes empty statistics for a tenant, from its flow and the name of the pool."""
FORGET_AFTER_S = 300.0
"""By then the debt of an unknown tenant has halved five times."""


class Drr:
    """The scheduler of all pools: queues, turns and charges."""

    __slots__ = (
        "_expiries",
        "_idle",
        "_new_stats",
        "_pool_type",
        "_sequence",
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
        pool_type: type[PoolQueue] = PoolQueue,
    ) -> None:
        """`new_stats` makes the `stats` of each new flow; without it flows have none. `pool_type`: of each new pool.

        Raises ValueError unless quantum and `idle_tenants` are above 0, class names differ and floors sum below 1.
        """
        if not quantum > 0 or idle_tenants < 1:
            raise ValueError(f"quantum and idle_tenants must be above 0, got {quantum} and {idle_tenants}")
        self.quantum = quantum
        self.classes = classes or (ClassSpec("default"),)
        _check(self.classes)
        self.idle_tenants = idle_tenants
        self.discipline: type[DrrDiscipline] | type[FifoDiscipline] = DrrDiscipline
        self.own_bounds = True
        """Whether tenants' own bounds count, beside the platform's."""
        self.usage = QueueUsage(bounds)
        self.tenants: dict[str, TenantAccount] = {}
        self.pools: dict[str, PoolQueue] = {}
        self._new_stats = new_stats
        self._pool_type = pool_type
        self._sequence = 0
        self._expiries = Expiries()
        self._idle: OrderedDict[TenantAccount, float] = OrderedDict()

    # ---- tenants

    def configure(self, spec: TenantSpec) -> TenantAccount:
        """Make a configured tenant, or change one.

        A weight counts at once, bounds and class from the next request on. Queued requests keep their place, and the
        tenant's queue in its old class ends with them. Raises ValueError for an unknown class.
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
        """End a tenant's configuration: it becomes unconfigured, with this spec. False if it is unknown.

        Raises ValueError for an unknown class.
        """
        self._check_class(spec)
        tenant = self.tenants.get(spec.id)
        if tenant is None:
            return False
        self._change(tenant, spec)
        if tenant.configured:
            tenant.configured = False
            self._note_idle(now, tenant)
        return True

    def reclass(self, now: float, classes: tuple[ClassSpec, ...]) -> None:
        """Replace the classes, in every pool. A removed class stays for the requests queued in it.

        Raises ValueError as the constructor does.
        """
        _check(classes)
        self.classes = classes
        for pool in self.pools.values():
            pool.reclass(now, classes)

    def create_unconfigured(self, now: float, spec: TenantSpec) -> TenantAccount:
        """Make an unconfigured tenant. It is forgotten some time after it became idle.

        Raises ValueError for an unknown class or a known tenant.
        """
        self._check_class(spec)
        if spec.id in self.tenants:
            raise ValueError(f"tenant {spec.id} is known already")
        tenant = self.tenants[spec.id] = TenantAccount(spec, configured=False)
        self._idle[tenant] = now
        return tenant

    def forget_idle(self, now: float) -> list[str]:
        """Forget idle unconfigured tenants, for their time or their number. Returns their ids; O(1) each."""
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
        """Queue a request with `request.charge_tokens`, or return the bound that it would exceed and change nothing.

        `flow` is that of its tenant in its pool, if the caller has it. Raises as `limit` does.
        """
        tenant = self.tenants[request.tenant]
        if limit := self.limit(tenant, request):
            return limit
        if flow is None:
            pool = self.pools.get(request.pool) or self.pool(request.pool)
            flow = self.flow(pool, tenant, request.class_name)
        self.insert(now, request, flow)
        return None

    def insert(self, now: float, request: Request, flow: Flow) -> None:
        """Queue a request in this flow. The caller has asked `limit`."""
        tenant = flow.tenant
        self._sequence = request.sequence = self._sequence + 1
        request.stage, request.queued_at = WAITING, now
        if not tenant.configured:
            self._idle.pop(tenant, None)
        tenant.usage.take(request)
        self.usage.take(request)
        request.flow = flow
        self.pools[request.pool].insert(now, flow, request)
        self._expiries.fresh.append(request)

    def limit(self, tenant: TenantAccount, request: Request) -> QueueLimit | None:
        """The bound that a new request would exceed; None if it fits.

        Raises RuntimeError if the request is not new, ValueError if its charge is negative or not finite, or if more
        than the charge is deferred.
        """
        if request.stage is not NEW:
            raise RuntimeError(f"{request!r} has been in line before")
        if not 0 <= request.deferred_tokens <= request.charge_tokens < inf:
            raise ValueError(
                f"{request!r} must cost 0 or more, not without end, and defer no more than that: "
                f"{request.deferred_tokens} of {request.charge_tokens}"
            )
        if self.own_bounds and (broken := tenant.usage.limit_exceeded_by(request)) is not None:
            return TENANT_LIMITS[broken]
        broken = self.usage.limit_exceeded_by(request)
        return None if broken is None else PLATFORM_LIMITS[broken]

    def start_at_once(self, now: float, request: Request, flow: Flow) -> bool:
        """Start a request without queueing it: what `enqueue` and then `next` do where it is the only one in its pool.

        The caller has asked `limit`. False, and no change, if it has to be queued: see `PoolQueue.start_at_once`.
        """
        tenant = flow.tenant
        charge_tokens = request.charge_tokens - request.deferred_tokens
        if not self.pools[request.pool].start_at_once(now, flow, charge_tokens):
            return False
        self._sequence = request.sequence = self._sequence + 1
        if not tenant.configured:
            self._idle.pop(tenant, None)
        flow.charged += charge_tokens
        tenant.running += 1
        request.flow = flow
        request.stage, request.queued_at, request.started_at = RUNNING, now, now
        return True

    def never_fits(self, request: Request) -> bool:
        """Whether the request would exceed a bound even in empty queues."""
        own = self.own_bounds and self.tenants[request.tenant].usage.never_fits(request)
        return own or self.usage.never_fits(request)

    def postpone(self, request: Request, expires_at: float) -> None:
        """Change the expiry of a queued request."""
        if request.stage is WAITING and expires_at != request.expires_at:
            self._sequence += 1
            self._expiries.move(request, expires_at, self._sequence)

    def make_ready(self, now: float, request: Request) -> None:
        """Retrieval is done: the request can start. If it is not queued, only its `ready` changes."""
        if request.ready or request.stage is not WAITING:
            request.ready = True
            return
        self.pools[request.pool].make_ready(now, request.flow, request)

    def reprice(self, now: float, request: Request, charge_tokens: float) -> None:
        """Change the estimate of a queued or running request; no effect on one that ended."""
        deferred_tokens = min(request.deferred_tokens, charge_tokens)
        if request.stage is WAITING:
            request.deferred_tokens = deferred_tokens
            for usage in (request.flow.tenant.usage, self.usage):
                usage.give_back(request)
            self.pools[request.pool].reprice(request.flow, request, charge_tokens)
            for usage in (request.flow.tenant.usage, self.usage):
                usage.take(request)
        elif request.stage is RUNNING:
            self._adjust_charge(now, request, charge_tokens, deferred_tokens)

    def discard(self, now: float, request: Request) -> bool:
        """Remove a queued request. False if it is not queued."""
        if request.stage is not WAITING:
            return False
        self._dequeue(now, request)
        self._expiries.drop()
        return True

    def expire(self, now: float) -> list[Request]:
        """Remove and return the requests whose expiry has come, earliest first."""
        expired = []
        while (request := self._expiries.pop(now)) is not None:
            self._dequeue(now, request)
            expired.append(request)
        return expired

    def wakes_at(self) -> float:
        """When `expire` next has something to do; infinity when nothing is queued."""
        return self._expiries.earliest()

    # ---- serving

    def next(self, now: float, pool_name: str, fits: Callable[[Request], bool] | None = None) -> Request | None:
        """The next request to start in this pool: dequeued, and charged to its flow and its class. None: none can.

        `fits`: flows whose head does not fit are skipped; O(n) in those.
        """
        pool = self.pools.get(pool_name)
        if pool is None or not pool.classes.backlog:
            return None
        request = pool.discipline.first(fits)
        return None if request is None else self._start(now, pool, request)

    def settle(self, now: float, request: Request, actual_tokens: float) -> None:
        """Charge the actual cost at the end, once: the flow and the class get the difference back, or pay it.

        Raises RuntimeError if the request does not run.
        """
        if request.stage is not RUNNING:
            raise RuntimeError(f"{request!r} does not run, so there is nothing to settle")
        self._adjust_charge(now, request, actual_tokens, ended=actual_tokens)
        request.stage = ENDED
        tenant = request.flow.tenant
        tenant.running -= 1
        assert tenant.running >= 0, f"{request!r} ended, and was not counted as running: {tenant!r}"
        if not (tenant.configured or tenant.running or tenant.usage.requests):
            self._idle[tenant] = now

    def serve_by(self, now: float, discipline: type[DrrDiscipline] | type[FifoDiscipline]) -> None:
        """Set the discipline of every pool, for queued requests too."""
        if discipline is self.discipline:
            return
        self.discipline = discipline
        for pool in self.pools.values():
            pool.discipline = discipline(pool)
            pool.discipline.begin(
                now, [flow for tenant in self.tenants.values() for flow in tenant.flows_in(pool.name)]
            )

    def waiting(self) -> Iterator[Request]:
        """All queued requests, tenant by tenant."""
        return (request for tenant in self.tenants.values() for flow in tenant.all_flows() for request in flow)

    # ---- lookups

    def pool(self, name: str) -> PoolQueue:
        """The pool of that name, made on first use. Names come from the worker list, not from clients."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = self._pool_type(name, self.quantum, self.classes)
            pool.discipline = self.discipline(pool)
        return pool

    def flow(self, pool: PoolQueue, tenant: TenantAccount, class_name: str = "") -> Flow:
        """The tenant's queue in the pool, in its own class or in a lower one, made on first use."""
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
        charge_tokens = request.charge_tokens - request.deferred_tokens
        pool.charge(flow, charge_tokens)
        pool.remove(now, flow, request)
        tenant.usage.give_back(request)
        self.usage.give_back(request)
        flow.charged += charge_tokens
        tenant.running += 1
        request.stage, request.started_at = RUNNING, now
        self._expiries.drop()
        return request

    def _adjust_charge(
        self, now: float, request: Request, charge_tokens: float, deferred_tokens: float = 0.0, ended: float = 0.0
    ) -> None:
        flow = request.flow
        refund = request.charge_tokens - request.deferred_tokens - charge_tokens + deferred_tokens
        request.charge_tokens, request.deferred_tokens = charge_tokens, deferred_tokens
        flow.charged -= refund
        self.pools[request.pool].settle(now, flow, refund, ended)

    def _dequeue(self, now: float, request: Request) -> None:
        assert request.stage is WAITING, f"{request!r} leaves the line, and does not wait"
        tenant = request.flow.tenant
        self.pools[request.pool].remove(now, request.flow, request)
        tenant.usage.give_back(request)
        self.usage.give_back(request)
        request.stage = ENDED
        self._note_idle(now, tenant)

    def _note_idle(self, now: float, tenant: TenantAccount) -> None:
        if not tenant.configured and not tenant.busy:
            self._idle[tenant] = now

    def __repr__(self) -> str:
        waiting = f"{self.usage.requests} requests wait ({self.usage.cost_tokens:g} tokens)"
        return f"<Drr {waiting}, {len(self.tenants)} tenants, {list(self.pools.values())}>"


def _check(classes: tuple[ClassSpec, ...]) -> None:
    if (
        not classes
        or len({spec.name for spec in classes}) < len(classes)
        or not sum((s.floor for s in classes), 0.0) < 1
    ):
        raise ValueError(f"classes must differ in name, and their floors leave something over, got {classes}")
