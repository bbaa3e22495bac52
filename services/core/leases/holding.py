"""What a router has borrowed from one worker: how many requests it may have in flight there, and until when.

A request starts only while `uses < may` and the lease lives. The lease ends a time after its ask was *sent*, on this
router's clock (`times.py`): a router that was frozen finds it ended before it starts anything.

A router gives slots back by an ask with `keep`, and from then on no grant that was sent before the worker received
that ask counts for more than `keep`: so the worker need not wait for an acknowledgement. A request whose end brings no
grant (a broken connection) gives its slot back in the same way, since the worker may have lent it already.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

from services.core.leases.messages import NEVER, Ask, Grant, Stamp, Want
from services.core.leases.times import DRIFT, MAX_TTL_S

MAX_ASKS = 4096
"""Asks whose sending times are kept; with more within a lease's time, the oldest cannot prolong it."""


class Holding:
    """One router's lease at one worker. `epoch`: when the router started, in milliseconds since 1970."""

    __slots__ = (
        "_asks",
        "_epoch",
        "_gives",
        "_granted",
        "_keep",
        "_kept_from",
        "_may",
        "_sent",
        "asked_at",
        "idle_since",
        "lapses_at",
        "recall",
        "router",
        "slots",
        "usable",
        "uses",
    )

    def __init__(self, router: str, epoch: int, slots: int = 0) -> None:
        """`slots`: of the worker, as far as is known before its first grant."""
        self.router = router
        self.slots = slots
        self.uses = 0
        """Requests in flight there."""
        self.usable = True
        """Requests may be sent there; what it has of an unusable worker is given back."""
        self.recall = False
        """The worker wants back what is not in use."""
        self.asked_at = -inf
        """When the last ask of its own was sent, without a request."""
        self.idle_since = inf
        """Since when it has a slot that is not in use; infinity while it has none."""
        self.lapses_at = -inf
        self._epoch = epoch
        self._asks = 0
        self._granted: Stamp = NEVER
        self._may = 0
        self._keep = 0
        self._kept_from: Stamp = NEVER  # a grant that echoes an earlier ask counts for at most `_keep`
        self._gives = False
        self._sent: OrderedDict[Stamp, float] = OrderedDict()

    # ---- what may start

    def may(self, now: float) -> int:
        """How many requests may be in flight there; 0 once the lease has ended."""
        return self._may if now < self.lapses_at else 0

    def free(self, now: float) -> int:
        """How many more requests may start there."""
        return max(0, self.may(now) - self.uses) if self.usable else 0

    def start(self, now: float) -> None:
        """A request is sent there."""
        may = self.may(now)
        assert self.uses < may, f"a request starts without a slot: {self!r} may have {may}"
        self.uses += 1
        self._note_idle(now)

    def end(self, now: float, grant: Grant | None) -> None:
        """A request has ended there. Without a grant its slot is given back."""
        self.uses -= 1
        assert self.uses >= 0, f"a request ended that was not in flight: {self!r}"
        if grant is None:
            self._give_back(now, max(self.uses, self._may - 1))
        elif not self.receive(now, grant):
            self._note_idle(now)

    # ---- messages

    def ask(
        self,
        now: float,
        wants: tuple[Want, ...],
        *,
        quantum: float,
        ttl_s: float,
        keep: int | None = None,
        alone: bool = True,
    ) -> Ask:
        """The next ask to send. `keep`: give back what is above it (None: nothing); `alone`: without a request.

        After its lease has ended by its own clock it gives back all that it does not use, so that the worker need not
        wait for the end by its clock: grants may have been lost.
        """
        if -inf < self.lapses_at <= now:
            self.lapses_at = -inf
            self._give_back(now, self.uses)
        if keep is not None and keep < self._may:
            self._give_back(now, max(self.uses, keep))
        stamp = self._next
        self._asks += 1
        self._sent[stamp] = now
        while len(self._sent) > MAX_ASKS or now - next(iter(self._sent.values())) > MAX_TTL_S:
            self._sent.popitem(last=False)
        if alone:
            self.asked_at = now
        given = None
        if self._gives and alone:  # said until it is confirmed: an ask may be lost
            given, self._kept_from = self._keep, stamp
        return Ask(self.router, stamp, self._granted, given, wants, quantum, ttl_s)

    def receive(self, now: float, grant: Grant) -> bool:
        """A grant, in any order. False: it is older than the last one, and changes nothing."""
        if grant.stamp <= self._granted:
            return False
        self._granted, self._may = grant.stamp, grant.may
        if grant.echo < self._kept_from:
            self._may = min(self._may, self._keep)
        else:
            self._gives = False
        self.slots, self.recall = grant.slots, grant.recall
        sent_at = self._sent.get(grant.echo)
        if sent_at is not None:
            self.lapses_at = max(self.lapses_at, sent_at + grant.ttl_s * (1.0 - DRIFT))
        self._note_idle(now)
        return True

    def disconnect(self) -> None:
        """The stream from this worker ended: nothing starts there before it answers an ask that is sent from now on.

        From now on it asks as another process would, with a higher epoch: the worker may see the end of the stream
        later than these asks, and then does not take it for the end of the lease that they began.
        """
        self._epoch, self._asks = self._epoch + 1, 0
        self.lapses_at, self.idle_since = -inf, inf
        self._sent.clear()

    @property
    def epoch(self) -> int:
        """Of its asks now: that of the router, and one more for each stream that ended."""
        return self._epoch

    @property
    def _next(self) -> Stamp:
        """The stamp of the next ask."""
        return self._epoch, self._asks + 1

    def _give_back(self, now: float, keep: int) -> None:
        """Use no more than this, and say so in the next ask."""
        self._may = self._keep = keep
        self._kept_from, self._gives = self._next, True
        self._note_idle(now)

    def _note_idle(self, now: float) -> None:
        if self.may(now) <= self.uses:
            self.idle_since = inf
        elif self.idle_since == inf:
            self.idle_since = now

    def __repr__(self) -> str:
        return f"<Holding of {self.router}: uses {self.uses} of {self._may} until {self.lapses_at:g}>"
