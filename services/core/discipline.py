"""Which request of a pool starts next: two queue disciplines with one interface, exchanged while requests wait.

    DrrDiscipline    tenants take turns by deficit, class by class (`ring.py`). A newcomer waits for its own queue at
                     its own share, and for one round of the others.
    FifoDiscipline   one queue over all tenants of a pool, in the order of arrival. It looks at neither cost nor weight
                     nor deadline, so the tenant that asks most gets most, and each request waits for all before it.

With both, a request that could not start now is skipped and keeps its place: no slot waits for a running retrieval.

The rings of a pool keep their books under either, since shares and settlements hang on them. `FifoDiscipline` only
never asks them. Cost of its choice: O(n) in the requests that are skipped.

**The wait under Deficit Round Robin.**

    wait = min( all work ahead,
                (own work ahead + own debt) / share + one round of the others ) / R + time to the next free slot

`own work ahead` counts what is due earlier only. `one round of the others` is the sum over them of min(quantum, work);
without it the estimate is blind when many small tenants cause the overload. It is still blind to tenants that are not
here yet: with hundreds of equal tenants one in eight of the admitted requests was overtaken by newcomers until it had
to be dropped. So rounds are also *measured*, and in each what newcomers took (`ring.py`); the wait is the longer of the
two. That is an estimate of the share that will be lost, and leaves a quarter of those drops (decision 018 has the
figures).

A tenant with an empty queue and no debt goes on the new list, and waits for the tenants on it alone. While a slot is
free no request waits. Free for a newcomer is what requests with a running retrieval will leave: they take no slot yet,
and all will want one. The next free slot is the first that is expected to end, not a mean: long requests fall into
step.
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
"""Whether a request could start on what is free now."""

ALONE = 0.999
"""Of all the work that is asked for: a tenant that asks for more than this share has no other to leave room for."""
LOOKED_AT = 512
"""Requests in the order of arrival in which `tenants` looks for tenants."""


class WaitPrediction(NamedTuple):
    """What a newcomer has before it: its share of the pool, and the wait to expect in seconds (not q95)."""

    share: float
    wait_s: float
    idle: bool
    """A slot is free for it."""
    new: bool
    """It goes on the new list, ahead of the tenants that wait for their next round."""


NO_WAIT = WaitPrediction(share=1.0, wait_s=0.0, idle=True, new=True)


class QueueDiscipline(Protocol):
    """The order of one pool's queue."""

    def begin(self, now: float, flows: Sequence[Flow]) -> None:
        """In force from now on, for the requests that wait in these flows as well: all flows of the pool."""

    def add(self, request: Request) -> None:
        """The request waits from now on."""

    def discard(self, request: Request) -> None:
        """The request has started or left."""

    def first(self, fits: Fits | None) -> Request | None:
        """The request that starts next among those that could start now, and fit. It stays in the queue."""

    def predict_wait(
        self, now: float, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
    ) -> WaitPrediction:
        """The expected wait of a newcomer of this flow that is due then. O(1) in the common case."""

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """Note whether the newcomer's tenant is under its share; the refusal if its queue is longer than allowed."""

    def has_own_queue(self, flow: Flow) -> bool:
        """Whether the flow's own queue decides how long its requests wait."""

    def deficit(self, now: float, flow: Flow) -> float:
        """The flow's deficit in tokens, below 0 for debt; 0 where deficits decide nothing."""

    def tenants(self, most: int) -> Iterator[tuple[TenantAccount, RingPosition]]:
        """The tenants in the order of their next starts, and where each stands: about `most`, some more than once."""


class DrrDiscipline:
    """Tenants take turns by deficit, and classes do."""

    __slots__ = ("_pool",)

    def __init__(self, pool: PoolQueue) -> None:
        self._pool = pool

    def begin(self, now: float, flows: Sequence[Flow]) -> None:
        """All flows take turns from nothing.

        What a tenant was served under another discipline was no choice of the rings: charged as debt, it would lock out
        the tenant that had got most by it, for as long as that discipline was in force.
        """
        self._pool.reset_rings(now, flows)

    def add(self, request: Request) -> None:
        """The rings know it already."""

    def discard(self, request: Request) -> None:
        """The rings know it already."""

    def first(self, fits: Fits | None) -> Request | None:
        """The head of the flow in turn, in the class in turn. O(n) in the flows that are skipped."""
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
        line, deficit = flow.work_before(due_at) if flow.requests else 0.0, ring.deficit_at(now, flow)
        new = line == 0.0 and ring.would_be_new(flow, deficit)
        if new:  # before it are the others that are new
            ahead = min(all_work, pool.turn_work(flow, deficit, line) / of_class)
        else:
            own = line - deficit if deficit < 0.0 else line
            ahead = own / share + pool.round_work - flow.round_part
            if ahead > all_work:
                ahead = all_work
            if measured_rounds:
                until_turn = pool.turn_work(flow, deficit, line) / of_class
                if until_turn > ahead:
                    ahead = until_turn
        if ahead < 0.0:  # sums of floats drift
            ahead = 0.0
        wait_s = ahead / rate + estimator.next_slot_s(now)
        assert 0.0 <= wait_s < inf, f"a wait of {wait_s} s: {ahead} tokens before {flow!r} at {rate} a second"
        return WaitPrediction(share, wait_s, False, new)

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """A tenant above its share leaves room for the prompts of the others, and keeps its queue short."""
        rate, asked_per_s = check.pool_stats.estimator.rate, check.asked_per_s
        if not rate or asked_per_s <= rate * check.share:
            return None
        check.under_share, settings = False, check.settings
        if asked_per_s < ALONE * check.all_asked_per_s and settings.reading_line:
            check.leave_room()
        stands = check.flow.requests > 0 and check.prediction.wait_s > check.tenant_stats.codel.limit_s
        return (Outcome.YIELD, "standing_queue") if stands and settings.standing_queue else None

    def has_own_queue(self, flow: Flow) -> bool:
        """While it has requests there."""
        return flow.requests > 0

    def deficit(self, now: float, flow: Flow) -> float:
        """As its ring has it."""
        return flow.node.flows.deficit_at(now, flow)

    def tenants(self, most: int) -> Iterator[tuple[TenantAccount, RingPosition]]:
        """Class by class, in the order of the rings' next visits."""
        for node, _ in service_order(self._pool.classes, most):
            yield from ((flow.tenant, turn) for flow, turn in service_order(node.flows, most))


def _first_of_class(node: ClassNode, fits: Fits | None) -> Request | None:
    """The head of the first flow of the class, in turn, that fits; flows that are skipped get their places back."""
    flows = node.flows
    while flow := flows.front():
        head = flow.line.first
        assert head is not None, f"{flow!r} is in turn with nothing to start"
        assert flow.deficit > 0.0, f"{flow!r} is in turn with nothing to pay with"
        if fits is None or fits(head):
            flows.unskip(started=True)
            return head
        flows.skip(flow)
    flows.unskip(started=False)
    return None


class FifoDiscipline:
    """All requests of one pool in one queue: first in, first out."""

    __slots__ = ("_pool", "_waiting")

    def __init__(self, pool: PoolQueue) -> None:
        self._pool = pool
        # OrderedDict, not dict: taking the first key of a dict again and again walks over its dead entries.
        self._waiting: OrderedDict[Request, None] = OrderedDict()

    def begin(self, now: float, flows: Sequence[Flow]) -> None:
        """In the order in which the requests came."""
        waiting = sorted((request for flow in flows for request in flow), key=lambda request: request.sequence)
        self._waiting = OrderedDict.fromkeys(waiting)

    def add(self, request: Request) -> None:
        """At the end."""
        self._waiting[request] = None

    def discard(self, request: Request) -> None:
        """A request that is not here raises KeyError."""
        del self._waiting[request]

    def first(self, fits: Fits | None) -> Request | None:
        """The first of those that could start now."""
        return next((each for each in self._waiting if each.ready and (fits is None or fits(each))), None)

    def predict_wait(
        self, now: float, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
    ) -> WaitPrediction:
        """All requests that came before go first."""
        pool, rate = self._pool, estimator.rate
        if pool.requests < estimator.slots - estimator.busy and not pool.classes.backlog:
            return NO_WAIT
        wait_s = max(0.0, pool.work) / rate + estimator.next_slot_s(now) if rate else 0.0
        return WaitPrediction(1.0, wait_s, False, False)

    def share_refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """No tenant has a share that it could be under."""
        check.under_share = False
        return None

    def has_own_queue(self, flow: Flow) -> bool:
        """No tenant has."""
        return False

    def deficit(self, now: float, flow: Flow) -> float:
        """Deficits decide nothing."""
        return 0.0

    def tenants(self, most: int) -> Iterator[tuple[TenantAccount, RingPosition]]:
        """By their first requests."""
        return ((request.flow.tenant, NOW) for request in islice(self._waiting, LOOKED_AT) if request.ready)

    def __repr__(self) -> str:
        return f"<FifoDiscipline {len(self._waiting)} wait>"
