"""Which request of a pool starts next: two queue disciplines with one interface, exchanged while requests wait.

    DrrDiscipline    tenants take turns by deficit, class by class (`ring.py`)
    FifoDiscipline   one queue over all tenants of a pool, in order of arrival; cost, weight and deadline do not count

With both, a request that cannot start yet is skipped and keeps its place: no slot waits for a running retrieval. The
rings count under either, since shares and settlements need them. FIFO's choice is O(n) in skipped requests. The wait
is predicted as docs/architecture/mechanisms/admission.md says; a slot counts as free if the requests whose retrieval
still runs leave it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from services.core.outcome import Outcome
from services.core.request import Request
from services.core.schedulable import NOW, RingPosition
from services.core.serviceorder import service_order

if TYPE_CHECKING:
    from services.core.account import TenantAccount
    from services.core.admissioncheck import AdmissionCheck
    from services.core.estimator import Estimator
    from services.core.pool import ClassNode, Flow, PoolQueue

Fits = Callable[[Request], bool]
"""Whether a request can start on what is free now."""

ALONE = 0.999
"""Share of all demand above which a tenant counts as alone: there is no other to leave room for."""
LOOKED_AT = 512
"""Requests, in order of arrival, in which `tenants` looks for tenants."""


class WaitPrediction(NamedTuple):
    """The predicted wait of a new request: its tenant's share of the pool, and the mean wait in seconds."""

    share: float
    wait_s: float
    idle: bool
    """A slot is free for it."""
    new: bool
    """It goes on the new list, ahead of tenants that wait for their next round."""


NO_WAIT = WaitPrediction(share=1.0, wait_s=0.0, idle=True, new=True)


class QueueDiscipline(Protocol):
    """The order of one pool's queue."""

    def begin(self, now: float, flows: Sequence[Flow]) -> None:
        """Take effect now, for the queued requests of these flows too: all flows of the pool."""

    def add(self, request: Request) -> None:
        """A request is queued."""

    def discard(self, request: Request) -> None:
        """A request has started or left the queue."""

    def first(self, fits: Fits | None) -> Request | None:
        """The request that starts next among those that are ready and fit. It stays in the queue."""

    def predict_wait(
        self, now: float, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
    ) -> WaitPrediction:
        """The predicted wait of a new request of this flow that is due at `due_at`. O(1) in the common case."""

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """Set `check.under_share`; the rejection if the tenant's queue is longer than allowed, else None."""

    def has_own_queue(self, flow: Flow) -> bool:
        """Whether the wait of the flow's requests depends on its own queue."""

    def deficit(self, now: float, flow: Flow) -> float:
        """The flow's deficit in token-equivalents, negative for debt; 0 where deficits are not used."""

    def tenants(self, limit: int) -> Iterator[tuple[TenantAccount, RingPosition]]:
        """About `limit` tenants in the order of their next starts, with their positions; some more than once."""


class DrrDiscipline:
    """Deficit round robin over classes and tenants."""

    __slots__ = ("_pool",)

    def __init__(self, pool: PoolQueue) -> None:
        self._pool = pool

    def begin(self, now: float, flows: Sequence[Flow]) -> None:
        """Reset all rings.

        Service under another discipline was not charged by the rings. Charged as debt, it would block the tenant that
        got most of it for as long as that discipline was in force.
        """
        self._pool.reset_rings(now, flows)

    def add(self, request: Request) -> None:
        """Nothing to do: the rings count it."""

    def discard(self, request: Request) -> None:
        """Nothing to do: the rings count it."""

    def first(self, fits: Fits | None) -> Request | None:
        """The head of the next flow of the next class. O(n) in skipped flows."""
        classes = self._pool.classes
        while node := classes.front():
            chosen = _first_of_class(node, fits)
            if chosen:
                classes.unskip(started=True)
                return chosen
            classes.skip(node)
        classes.unskip(started=False)
        return None

    def predict_wait(
        self, now: float, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
    ) -> WaitPrediction:
        """By the flow's own queue, its share and debt, and one round of the others."""
        pool = self._pool
        if pool.requests < estimator.slots - estimator.busy and not pool.classes.backlog:
            return NO_WAIT
        node, rate = flow.node, estimator.rate
        of_class = pool.class_share(node)
        share = flow.weight / (node.active_weight + (0.0 if flow.active else flow.weight)) * of_class
        if not rate:
            return WaitPrediction(share, 0.0, False, False)
        ring, all_work = node.flows, pool.work
        own_work, deficit = flow.work_before(due_at) if flow.requests else 0.0, ring.deficit_at(now, flow)
        new = own_work == 0.0 and ring.would_be_new(flow, deficit)
        if new:  # only other new flows are ahead
            ahead = min(all_work, pool.turn_work(flow, deficit, own_work) / of_class)
        else:
            own = own_work - deficit if deficit < 0.0 else own_work
            ahead = own / share + pool.round_work - flow.round_part
            if ahead > all_work:
                ahead = all_work
            if measured_rounds:
                until_turn = pool.turn_work(flow, deficit, own_work) / of_class
                if until_turn > ahead:
                    ahead = until_turn
        if ahead < 0.0:  # sums of floats drift
            ahead = 0.0
        wait_s = ahead / rate + estimator.next_slot_s(now)
        assert 0.0 <= wait_s < inf, f"a wait of {wait_s} s: {ahead} tokens before {flow!r} at {rate} a second"
        return WaitPrediction(share, wait_s, False, new)

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """Above its share, a tenant leaves room for other tenants' prompts, and its queue is limited."""
        rate, asked_per_s = check.pool_stats.estimator.rate, check.asked_per_s
        if not rate or asked_per_s <= rate * check.share:
            return None
        check.under_share, settings = False, check.settings
        if asked_per_s < ALONE * check.all_asked_per_s and settings.unread_prompts_delay:
            check.leave_room()
        stands = check.flow.requests > 0 and check.prediction.wait_s > check.tenant_stats.codel.limit_s
        return (Outcome.YIELD, "standing_queue") if stands and settings.standing_queue else None

    def has_own_queue(self, flow: Flow) -> bool:
        return flow.requests > 0

    def deficit(self, now: float, flow: Flow) -> float:
        return flow.node.flows.deficit_at(now, flow)

    def tenants(self, limit: int) -> Iterator[tuple[TenantAccount, RingPosition]]:
        """Class by class, in the order of the rings' next visits."""
        for node, _ in service_order(self._pool.classes, limit):
            yield from ((flow.tenant, turn) for flow, turn in service_order(node.flows, limit))


def _first_of_class(node: ClassNode, fits: Fits | None) -> Request | None:
    """The head of the first flow of the class that fits. Skipped flows get their places back."""
    flows = node.flows
    while flow := flows.front():
        head = flow.queue.first
        assert head is not None, f"{flow!r} is in turn with nothing to start"
        assert flow.deficit > 0.0, f"{flow!r} is in turn with nothing to pay with"
        if fits is None or fits(head):
            flows.unskip(started=True)
            return head
        flows.skip(flow)
    flows.unskip(started=False)
    return None


class FifoDiscipline:
    """All requests of one pool in one queue, first in, first out."""

    __slots__ = ("_pool", "_waiting")

    def __init__(self, pool: PoolQueue) -> None:
        self._pool = pool
        # OrderedDict, not dict: reading the first key of a dict walks over the entries deleted before it.
        self._waiting: OrderedDict[Request, None] = OrderedDict()

    def begin(self, now: float, flows: Sequence[Flow]) -> None:
        """Queue all requests in order of arrival."""
        waiting = sorted((request for flow in flows for request in flow), key=lambda request: request.sequence)
        self._waiting = OrderedDict.fromkeys(waiting)

    def add(self, request: Request) -> None:
        self._waiting[request] = None

    def discard(self, request: Request) -> None:
        """Remove the request. Raises KeyError if it is not queued."""
        del self._waiting[request]

    def first(self, fits: Fits | None) -> Request | None:
        return next((each for each in self._waiting if each.ready and (fits is None or fits(each))), None)

    def predict_wait(
        self, now: float, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
    ) -> WaitPrediction:
        """All requests that arrived earlier go first."""
        pool, rate = self._pool, estimator.rate
        if pool.requests < estimator.slots - estimator.busy and not pool.classes.backlog:
            return NO_WAIT
        wait_s = max(0.0, pool.work) / rate + estimator.next_slot_s(now) if rate else 0.0
        return WaitPrediction(1.0, wait_s, False, False)

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """No tenant has a share, so none is below it."""
        check.under_share = False
        return None

    def has_own_queue(self, flow: Flow) -> bool:
        return False

    def deficit(self, now: float, flow: Flow) -> float:
        return 0.0

    def tenants(self, limit: int) -> Iterator[tuple[TenantAccount, RingPosition]]:
        return ((request.flow.tenant, NOW) for request in islice(self._waiting, LOOKED_AT) if request.ready)

    def __repr__(self) -> str:
        return f"<FifoDiscipline {len(self._waiting)} wait>"
