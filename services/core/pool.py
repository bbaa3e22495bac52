"""The scheduler's view of the workers that serve the same models: queues, rings and shares.

    pool -> class -> flow (one tenant's queue in this pool)

Beside the two levels of rings a pool keeps the sums that admission needs, each updated in O(1): all queued work, one
round's worth of it, and the weights of the active flows and classes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, TypeVar

from services.core.account import ClassSpec, TenantAccount
from services.core.discipline import DrrDiscipline, QueueDiscipline
from services.core.edf import DeadlineQueue
from services.core.request import Request
from services.core.ring import Ring
from services.core.schedulable import OUT, Schedulable
from services.core.singleclass import SingleClass

if TYPE_CHECKING:
    from services.core.elsewhere import Elsewhere
    from services.core.stats import TenantStats

M = TypeVar("M", bound=Schedulable)

ACTIVE_FOR_S = 1.0
"""How long a flow counts as active after its queue empties: light tenants return, and their share is still theirs."""
ROUNDING_TOKENS = 1e-3
"""Tolerance of sums of charges: they are added and subtracted in floating point."""


class Flow(Schedulable):
    """One tenant's queue in one class of one pool."""

    __slots__ = (
        "active", "charged", "elsewhere", "node", "queue", "requests", "round_part", "stats", "tenant", "unready",
    )  # fmt: skip

    stats: TenantStats
    """The statistics of this tenant here. Forgotten with the flow; no order depends on them."""

    def __init__(self, tenant: TenantAccount, node: ClassNode) -> None:
        super().__init__(tenant.weight)
        self.tenant = tenant
        self.node = node
        self.queue = DeadlineQueue()
        self.unready = DeadlineQueue()
        self.requests = 0  # queued here
        self.round_part = 0.0  # this flow's part of one round: min(its quantum, its work)
        self.active = False
        self.charged = 0.0  # all charges, less refunds
        self.elsewhere = 0.0
        """The part of its requests that other routers get; its weight here is without it."""

    def __iter__(self) -> Iterator[Request]:
        """All queued requests: the ready ones, earliest deadline first, then the others."""
        yield from self.queue
        yield from self.unready

    @property
    def work(self) -> float:
        """Charges of all queued requests."""
        return self.queue.work + self.unready.work

    def work_before(self, due_at: float) -> float:
        """Charges of the requests ahead of a new one that is due at `due_at`."""
        before = self.queue.work_before(due_at)
        return before + self.unready.work_before(due_at) if self.unready.work else before

    def __repr__(self) -> str:
        return (
            f"<Flow {self.tenant.id}: {len(self.queue)}+{len(self.unready)} wait, deficit {self.deficit:g},"
            f" {self.position.value}, weight {self.weight:g}>"
        )


class ClassNode(Schedulable):
    """One class in one pool, with the ring of its flows."""

    __slots__ = ("active_flows", "active_weight", "flows", "name")

    def __init__(self, name: str, weight: float, flows: Ring[Flow]) -> None:
        super().__init__(weight)
        self.name = name
        self.flows = flows
        self.active_flows = 0
        self.active_weight = 0.0

    def __repr__(self) -> str:
        return f"<ClassNode {self.name}: deficit {self.deficit:g}, {self.position.value}, {self.flows!r}>"


class PoolQueue:
    """The two levels of rings of one pool, and sums over them."""

    __slots__ = (
        "_lingering",
        "_releases_at",
        "active_flows",
        "active_weight",
        "classes",
        "discipline",
        "elsewhere",
        "name",
        "nodes",
        "quantum",
        "requests",
        "round_work",
        "unread_tokens",
        "waiting_flows",
        "work",
    )

    def __init__(self, name: str, quantum: float, classes: tuple[ClassSpec, ...]) -> None:
        self.name = name
        self.quantum = quantum
        self.nodes = {name: ClassNode(name, weight, Ring(quantum)) for name, weight in floored(classes).items()}
        self.classes: Ring[ClassNode] | SingleClass[ClassNode] = Ring(quantum)
        if len(self.nodes) == 1:
            self.classes = SingleClass(quantum, *self.nodes.values())
        self.discipline: QueueDiscipline = DrrDiscipline(self)
        self.elsewhere: Elsewhere | None = None
        """What other routers of the pool do; None at the only one."""
        self.requests = 0
        self.work = 0.0
        self.unread_tokens = 0
        """Prompt tokens of all queued requests."""
        self.round_work = 0.0
        self.active_weight = 0.0
        self.active_flows = 0
        self.waiting_flows = 0
        self._lingering: OrderedDict[Flow, float] = OrderedDict()
        self._releases_at = inf  # a lower bound: the first of those above may be active again

    # ---- queued requests

    def insert(self, now: float, flow: Flow, request: Request) -> None:
        """Add a request to its flow's queue."""
        self.requests += 1
        self.work += request.charge_tokens
        self.unread_tokens += request.read_tokens
        flow.requests += 1
        if flow.requests == 1:
            self.waiting_flows += 1
            if not flow.active:
                self._activate(flow)
            elif flow in self._lingering:
                del self._lingering[flow]
        if request.ready:
            flow.queue.add(request)
            self._add_backlog(now, flow)
        else:
            flow.unready.add(request)
        self.discipline.add(request)
        self._update_round(flow)

    def remove(self, now: float, flow: Flow, request: Request) -> None:
        """Remove a request from its flow's queue, for any reason."""
        self.requests -= 1
        self.work = self.work - request.charge_tokens if self.requests else 0.0  # sums of floats drift
        unread = self.unread_tokens = self.unread_tokens - request.read_tokens
        assert unread >= 0, f"{unread} tokens are unread in {self!r}, without the {request.read_tokens} of {request!r}"
        if request.ready:
            flow.queue.discard(request)
            flow.node.flows.remove_backlog(now, flow)
            self.classes.remove_backlog(now, flow.node)
        else:
            flow.unready.discard(request)
        self.discipline.discard(request)
        left = flow.requests = flow.requests - 1
        assert left >= flow.backlog, f"{left} wait in {flow!r}, {flow.backlog} of them could start: {request!r} left"
        if not left:
            self.waiting_flows -= 1
            assert self.requests >= self.waiting_flows >= 0, f"{self.waiting_flows} lines of {self!r} have work"
            if not self._lingering:
                self._releases_at = now + 0.999 * ACTIVE_FOR_S  # slightly early: `release_idle` compares exactly
            self._lingering[flow] = now
        self._update_round(flow)

    def start_at_once(self, now: float, flow: Flow, cost: float) -> bool:
        """Charge a new request that is ready, in place of `insert`, `charge` and `remove`, where it is the next.

        False, and no change, if other requests are queued, its class is in debt, or its tenant has other flows, whose
        debt it may inherit; or if it is in debt itself, and requests start in order of arrival.
        """
        if self.requests or len(flow.tenant.flows) > 1 or flow.tenant.others:
            return False
        node, classes = flow.node, self.classes
        if not classes.credit(now, node):
            return False
        if not node.flows.serve_at_once(now, flow, cost):
            in_turn = isinstance(self.discipline, DrrDiscipline)  # in order of arrival there are no rounds to pay in
            if not in_turn or not node.flows.serve_at_once(now, flow, cost, pays=True):
                return False
        classes.serve_at_once(now, node, cost)
        lingering = self._lingering
        if flow.active:
            del lingering[flow]
        else:
            self._activate(flow)
        if not lingering:
            self._releases_at = now + 0.999 * ACTIVE_FOR_S
        lingering[flow] = now
        return True

    def make_ready(self, now: float, flow: Flow, request: Request) -> None:
        """A queued request can start from now on."""
        flow.unready.discard(request)
        request.ready = True
        flow.queue.add(request)
        self._add_backlog(now, flow)

    def charge(self, flow: Flow, cost: float) -> None:
        """The next flow starts a request of this estimated cost."""
        flow.node.flows.charge(flow, cost)
        self.classes.charge(flow.node, cost)

    def settle(self, now: float, flow: Flow, refund: float, ended: float = 0.0) -> None:
        """Correct a charge that was too high by `refund` (negative: too low), at both levels."""
        flow.node.flows.settle(now, flow, refund, ended)
        self.classes.settle(now, flow.node, refund, ended)
        assert flow.unsettled > -ROUNDING_TOKENS, f"{flow!r}: {flow.unsettled:g} tokens are in flight"

    def charge_elsewhere(self, now: float, flow: Flow, cost: float) -> None:
        """Charge this tenant, within its class, for what other routers of the pool served it; negative: refund it.

        It is not in `flow.charged`, which counts what this router served.
        """
        flow.node.flows.inherit_debt(now, flow, cost)

    def charge_class_elsewhere(self, now: float, node: ClassNode, cost: float) -> None:
        """Charge what other routers served to all tenants of the class, those that this router does not know too."""
        self.classes.inherit_debt(now, node, cost)

    def reprice(self, flow: Flow, request: Request, charge_tokens: float) -> None:
        """Change the estimate of a queued request. It keeps its place, and its flow its turn."""
        queue = flow.queue if request.ready else flow.unready
        queue.discard(request)
        self.work += charge_tokens - request.charge_tokens
        request.charge_tokens = charge_tokens
        queue.add(request)
        self._update_round(flow)

    def will_read(self, request: Request, tokens: int) -> None:
        """Set the number of tokens to prefill of a queued request."""
        self.unread_tokens += tokens - request.read_tokens
        request.read_tokens = tokens

    def reweigh(self, flow: Flow, weight: float) -> None:
        """Change the tenant's weight."""
        if flow.active:
            flow.node.active_weight += weight - flow.weight
        flow.node.flows.reweigh(flow, weight)
        self._update_round(flow)

    def reclass(self, now: float, classes: tuple[ClassSpec, ...]) -> None:
        """Replace the classes and their weights. A removed class stays for the requests queued in it."""
        if isinstance(self.classes, SingleClass) and any(spec.name not in self.nodes for spec in classes):
            self.classes = self.classes.joined(now)
        for name, weight in floored(classes).items():
            node = self.nodes.get(name)
            if node is None:
                self.nodes[name] = ClassNode(name, weight, Ring(self.quantum))
                continue
            if node.active_flows:
                self.active_weight += weight - node.weight
            self.classes.reweigh(node, weight)

    def reset_rings(self, now: float, flows: Sequence[Flow]) -> None:
        """Reset the rings: each flow has one quantum, and they take turns in order of arrival of their requests."""
        for node in self.nodes.values():
            node.flows = _emptied(node.flows)
            node.reset()
        for flow in flows:
            flow.reset()
        if isinstance(self.classes, Ring):
            self.classes = _emptied(self.classes)
        self.classes.backlog = 0
        ready = [request for flow in flows for request in flow.queue]
        for request in sorted(ready, key=lambda request: request.sequence):
            request.flow.node.flows.add_backlog(now, request.flow)
            self.classes.add_backlog(now, request.flow.node)

    def set_quantum(self, quantum: float) -> None:
        """Set the quantum, per round and unit of weight."""
        self.quantum = self.classes.quantum = quantum
        for node in self.nodes.values():
            node.flows.quantum = quantum

    # ---- lookups for admission

    def node(self, own: str, asked: str) -> ClassNode:
        """The class to queue in: `asked` if it weighs less than the tenant's own, else the own."""
        node = self.nodes[own]
        lower = self.nodes.get(asked)
        return lower if lower is not None and lower.weight < node.weight else node

    def share(self, flow: Flow) -> float:
        """The flow's share of the pool: own weight / active weight, at both levels."""
        node = flow.node
        within = flow.weight / (node.active_weight + (0.0 if flow.active else flow.weight))
        return within * (node.weight / (self.active_weight + (0.0 if node.active_flows else node.weight)))

    def class_share(self, node: ClassNode) -> float:
        """The share of its class."""
        return node.weight / (self.active_weight + (0.0 if node.active_flows else node.weight))

    def turn_work(self, flow: Flow, deficit: float, ahead: float) -> float:
        """Work of its class until the flow starts what is behind `ahead` of its own work, by measured rounds."""
        part = self.round_work / self.waiting_flows if self.waiting_flows else 0.0
        return flow.node.flows.work_until_turn(flow, deficit, ahead, part)

    def release_idle(self, now: float) -> None:
        """Flows whose queue has been empty for ACTIVE_FOR_S are no longer active. O(1) per flow and second."""
        if now < self._releases_at:
            return
        while self._lingering:
            flow, since = next(iter(self._lingering.items()))
            if now - since < ACTIVE_FOR_S:
                self._releases_at = since + 0.999 * ACTIVE_FOR_S
                return
            del self._lingering[flow]
            self._deactivate(flow)
        self._releases_at = inf

    # ---- inside

    def _add_backlog(self, now: float, flow: Flow) -> None:
        if flow.position is OUT and (len(flow.tenant.flows) > 1 or flow.tenant.others):
            self._inherit_debt(now, flow)
        flow.node.flows.add_backlog(now, flow)
        self.classes.add_backlog(now, flow.node)

    def _inherit_debt(self, now: float, flow: Flow) -> None:
        """Move to this flow the settled debt of the tenant's idle flows in the same class of other pools.

        Not between classes, because each keeps its own deficits: debt moved to a lower class might never be paid.
        """
        for sibling in flow.tenant.all_flows():
            if sibling is not flow and sibling.node.name == flow.node.name and sibling.position is OUT:
                ring = sibling.node.flows
                if owed := ring.owed(now, sibling):
                    ring.inherit_debt(now, sibling, -owed)
                    flow.node.flows.inherit_debt(now, flow, owed)

    def _update_round(self, flow: Flow) -> None:
        part = self.quantum * flow.weight
        work = flow.queue.work + flow.unready.work
        if work < part:
            part = work
        self.round_work = self.round_work + part - flow.round_part if self.requests else 0.0
        flow.round_part = part

    def _activate(self, flow: Flow) -> None:
        node = flow.node
        flow.active = True
        self.active_flows += 1
        if not node.active_flows:
            self.active_weight += node.weight
        node.active_flows += 1
        node.active_weight += flow.weight

    def _deactivate(self, flow: Flow) -> None:
        node = flow.node
        flow.active = False
        self.active_flows -= 1
        node.active_flows -= 1
        assert self.active_flows >= node.active_flows >= 0, f"{flow!r} was let go twice in {self!r}"
        node.active_weight -= flow.weight
        if not node.active_flows:  # sums of floats drift; no flow is left
            node.active_weight = 0.0
            self.active_weight = self.active_weight - node.weight if self.active_flows else 0.0

    def __repr__(self) -> str:
        waits = f"{self.requests} wait ({self.work:g} tokens)"
        return f"<PoolQueue {self.name}: {waits}, {self.active_flows} flows active, {self.classes!r}>"


def _emptied(ring: Ring[M]) -> Ring[M]:
    """A ring with the same settings and no members."""
    return Ring(ring.quantum, debt_quanta=ring.debt_quanta, debt_half_life_s=ring.debt_half_life_s)


def floored(classes: tuple[ClassSpec, ...]) -> dict[str, float]:
    """Each class's weight, raised where its share of all weights is below its floor."""
    raised: set[str] = set()
    while True:
        free = sum((spec.weight for spec in classes if spec.name not in raised), 0.0)
        total = free / (1.0 - sum((spec.floor for spec in classes if spec.name in raised), 0.0))
        below = {spec.name for spec in classes if spec.name not in raised and spec.weight < spec.floor * total}
        if not below:
            return {spec.name: spec.floor * total if spec.name in raised else spec.weight for spec in classes}
        raised |= below
