"""The slots that a worker has lent, and to whom: docs/architecture/mechanisms/several-routers.md.

    promised = max(may, running)                                 of each router
    free     = slots + look-ahead - sum of promised

A slot is lent while one is free and a router waits for it (`turn.py` says which). A request's end is where a slot
changes hands: the worker is where the slot is, so it decides there, and the answer itself carries the decision. The
router that keeps a slot needs no message, and its slot is not idle for a moment.

`may` falls in two ways only: at the end of a request, whose slot the router cannot use again before it reads the
answer; or as the router itself has said (`Ask.keep`), which holds for all grants that are under way. So no slot is
promised twice, whatever is lost, late, repeated or out of order, and no acknowledgement is awaited. And a request
starts only within its router's `may`, or in a slot that is neither taken nor promised: no more than `slots +
look-ahead` run, wherever a wrong lease comes from.

A router whose asks arrive and which receives no grant (a link that is cut one way) would hold slots that it cannot use.
Its lease is not prolonged while grants stay unacknowledged, and it is lent nothing more before it acknowledges one.
And a router that has slots which it does not use yet, half of the worker's, gets no further one: a frozen
router, the least served of all, would soon have every slot.

Bound: MAX_ROUTERS. O(routers) for each decision.
"""

from __future__ import annotations

from math import inf

from services.core.leases.bookedlease import BookedLease
from services.core.leases.messages import Ask, Grant, Stamp, Want
from services.core.leases.times import DRIFT, MAX_TTL_S, MIN_TTL_S, WANT_TTL_S
from services.core.leases.turn import Claim, first, keeps
from services.core.leases.unleased import Unleased

MAX_ROUTERS = 64
UNUSED_PART = 2
"""A router that does not use what it has is lent at most this part of the slots: a frozen one would get them all."""

Grants = dict[str, Grant]
"""By router: what to send to it."""


class LeaseBook:
    """One worker's slots. Each method returns the grants to send; none of them waits.

    `epoch`: when the worker started, in milliseconds since 1970. Raises ValueError for negative slots.
    """

    __slots__ = (
        "_ceiling",
        "_deaf",
        "_ended",
        "_grants",
        "_leases",
        "_unleased",
        "epoch",
        "look_ahead",
        "moves",
        "slots",
    )

    def __init__(self, epoch: int, slots: int, look_ahead: int = 0) -> None:
        self.epoch = epoch
        self.look_ahead = look_ahead
        self.moves = 0
        """Slots that were lent so far to a router that had not had them."""
        self._grants = 0
        self._leases: dict[str, BookedLease] = {}
        self._unleased = Unleased()
        self._ended: dict[str, int] = {}  # by router: the epoch of the last stream that ended
        self._deaf: dict[str, Stamp] = {}  # routers whose leases ended although they asked: the last grant then
        self.slots = self._ceiling = 0
        self.resize(0.0, slots)

    # ---- counts

    @property
    def running(self) -> int:
        """Requests that run here, with a lease or without."""
        return sum([lease.running for lease in self._leases.values()]) + self._unleased.running

    @property
    def promised(self) -> int:
        """Slots that are promised or in use."""
        return sum([lease.promised for lease in self._leases.values()]) + self._unleased.running

    @property
    def free(self) -> int:
        """Slots that are neither promised nor in use; negative after the worker has shrunk."""
        return self.slots + self.look_ahead - self.promised

    @property
    def has_leases(self) -> bool:
        """Whether a router has a lease here."""
        return bool(self._leases)

    def may(self, router: str) -> int:
        """How many requests of this router may be in flight here."""
        lease = self._leases.get(router)
        return 0 if lease is None else lease.may

    def leases(self) -> list[BookedLease]:
        """All leases, in the order in which their routers came."""
        return list(self._leases.values())

    # ---- messages

    def receive(self, now: float, ask: Ask) -> Grants:
        """A router asks, alone or with a request. The first grant answers it; a repeated ask changes nothing."""
        self.lapse(now)
        lease = self._lease_of(ask)
        if lease is None or ask.stamp[0] < lease.epoch:
            return {ask.router: self._void(ask)}
        if ask.stamp <= lease.received:
            return {ask.router: self._repeated(lease)}
        lease.received, lease.received_at = ask.stamp, now
        lease.wants, lease.quantum, lease.recalled = ask.wants, ask.quantum, False
        self._acknowledge(now, lease, ask.ack)
        if now - lease.unacknowledged_since <= lease.ttl_s:
            lease.echo, lease.ttl_s = ask.stamp, min(MAX_TTL_S, max(MIN_TTL_S, ask.ttl_s))
            lease.lapses_at = max(lease.lapses_at, now + lease.ttl_s * (1.0 + DRIFT))
        else:
            lease.wants = ()
        if ask.keep is not None:
            lease.may = min(lease.may, max(0, ask.keep))
        changed = {lease.router: lease, **self._lend(now)}
        return {router: self._grant(now, each) for router, each in changed.items()}

    def is_over(self, ask: Ask) -> bool:
        """Whether the stream of the ask's process has ended here. Its router must open another, with a higher epoch."""
        return ask.stamp[0] <= self._ended.get(ask.router, -1)

    def start(self, now: float, router: str, epoch: int) -> Grants | None:
        """A request of this router arrives, and its ask, of this epoch, was received. None: it has no slot here, and is
        refused as by any full worker.
        """
        self.lapse(now)
        lease = self._leases.get(router)
        is_leased = lease is not None and lease.epoch == epoch and lease.running < lease.may
        if not is_leased and self.free <= 0:
            return None
        if lease is not None and lease.epoch == epoch:
            lease.running += 1
        else:
            self._unleased.add((router, epoch))
        return {router: self._grant(now, each) for router, each in self._lend(now).items()}

    def end(self, now: float, router: str, epoch: int) -> Grants:
        """A request of this router has ended, for any reason: who gets its slot. Its own grant goes with its answer."""
        self.lapse(now)
        lease = self._leases.get(router)
        own: dict[str, BookedLease] = {}
        if lease is not None and lease.epoch == epoch:
            assert lease.running > 0, f"a request of {router} ended that did not run: {lease!r}"
            slot_is_promised = lease.may >= lease.running
            lease.running -= 1
            if slot_is_promised and not self._keeps(now, lease):
                lease.may -= 1
            own = {router: lease}
        else:
            ran = self._unleased.end((router, epoch))
            assert ran, f"a request of {router}/{epoch} ended that did not run: {self!r}"
        changed = {**own, **self._lend(now)}
        return {router: self._grant(now, each) for router, each in changed.items()}

    def start_without_lease(self, now: float) -> Grants | None:
        """A request without an ask arrives. While no router has a lease it is only counted, since nothing is promised;
        else it needs a slot that is neither taken nor promised. None: there is no such slot.
        """
        self.lapse(now)
        if not self._leases:
            self._unleased.add_without_ask()
            self._ceiling = max(self._ceiling, self.promised)
            return {}
        if self.free <= 0:
            return None
        self._unleased.add_without_ask()
        return {router: self._grant(now, each) for router, each in self._lend(now).items()}

    def end_without_lease(self, now: float) -> Grants:
        """A request that came without an ask has ended, for any reason: who gets its slot."""
        self.lapse(now)
        ran = self._unleased.end_without_ask()
        assert ran, f"a request without a lease ended that did not run: {self!r}"
        if not self._leases:
            self._check()
            return {}
        return {router: self._grant(now, each) for router, each in self._lend(now).items()}

    def disconnect(self, now: float, router: str, epoch: int) -> Grants:
        """The stream of this epoch ended: its lease is void, and what runs for it stays counted until it ends."""
        self._ended[router] = max(epoch, self._ended.pop(router, -1))
        if len(self._ended) > MAX_ROUTERS:
            del self._ended[next(iter(self._ended))]
        lease = self._leases.get(router)
        if lease is None or lease.epoch != epoch:
            return {}
        self._end_lease(lease)
        return {router: self._grant(now, each) for router, each in self._lend(now).items()}

    def resize(self, now: float, slots: int) -> Grants:
        """Set the number of slots; 0 for a worker that drains.

        Nothing is taken back: idle slots are recalled, and `may` falls at the ends of requests.
        """
        if slots < 0:
            raise ValueError(f"slots must be at least 0, got {slots}")
        self.slots = slots
        self._ceiling = max(slots + self.look_ahead, self.promised)
        return {router: self._grant(now, each) for router, each in self._lend(now).items()}

    # ---- time

    def lapse(self, now: float) -> None:
        """End the leases whose time is over. What runs stays counted until it ends."""
        if not self._leases:
            return
        for lease in [each for each in self._leases.values() if each.lapses_at < now]:
            if now - lease.received_at <= lease.ttl_s:
                self._deaf[lease.router] = lease.granted
                self._bound_deaf()
            self._end_lease(lease)

    def expire(self, now: float) -> Grants:
        """Call at `wakes_at`: slots of lapsed leases go to the routers that wait."""
        self.lapse(now)
        return {router: self._grant(now, each) for router, each in self._lend(now).items()}

    def wakes_at(self) -> float:
        """When the next lease lapses; infinity without leases."""
        return min([lease.lapses_at for lease in self._leases.values()], default=inf)

    # ---- inside

    def _lease_of(self, ask: Ask) -> BookedLease | None:
        """The lease of the process that asks, or of its successor. None: there is no room for one more router, or the
        ask is older than the end of its stream, as one is that the network sends again when a cut ends.
        """
        lease = self._leases.get(ask.router)
        if self.is_over(ask):
            return None
        if lease is not None and ask.stamp[0] > lease.epoch:
            self._end_lease(lease)
            self._deaf.pop(ask.router, None)
            lease = None
        if lease is None and len(self._leases) < MAX_ROUTERS:
            epoch = ask.stamp[0]
            lease = self._leases[ask.router] = BookedLease(ask.router, epoch)
            lease.is_deaf = ask.router in self._deaf
            lease.running = self._unleased.take((ask.router, epoch))
        return lease

    def _acknowledge(self, now: float, lease: BookedLease, ack: Stamp) -> None:
        if ack >= lease.granted:
            lease.unacknowledged_since = inf
        elif ack > lease.acknowledged:
            lease.unacknowledged_since = now
        lease.acknowledged = max(ack, lease.acknowledged)
        if lease.is_deaf and ack > self._deaf[lease.router]:
            lease.is_deaf = False
            del self._deaf[lease.router]

    def _bound_deaf(self) -> None:
        """Forget one that is gone, if there are more than there can be leases."""
        if len(self._deaf) > MAX_ROUTERS:
            del self._deaf[next(router for router in self._deaf if router not in self._leases)]

    def _end_lease(self, lease: BookedLease) -> None:
        del self._leases[lease.router]
        self._unleased.add((lease.router, lease.epoch), lease.running)

    def _claims(self, now: float, but: BookedLease | None = None) -> list[Claim]:
        """The routers that wait for a slot here, once for each of their classes."""
        return [
            lease.claim(want)
            for lease in self._leases.values()
            if lease is not but and now - lease.received_at <= WANT_TTL_S and self._may_lend(lease)
            for want in lease.wants
            if want.requests > 0
        ]

    def _may_lend(self, lease: BookedLease) -> bool:
        """Whether it has shown that it receives grants, and uses what it has."""
        return not lease.is_deaf and lease.may - lease.running < max(1, self.slots // UNUSED_PART)

    def _quantum(self) -> float:
        """The largest of the routers' quanta: levels that differ by less are equal."""
        return max([lease.quantum for lease in self._leases.values()], default=0.0)

    def _keeps(self, now: float, lease: BookedLease) -> bool:
        """Whether the router keeps the slot in which its request has just ended."""
        if self.free < 0:
            return False
        others = self._claims(now, but=lease)
        if not others:
            return True
        if lease.may - lease.running > max(1, self.slots // UNUSED_PART):
            return False
        wants = [want for want in lease.wants if want.requests > 0]
        if not wants:
            if now - lease.received_at <= WANT_TTL_S or not lease.wants:
                return False
            wants = list(lease.wants)
        own = min(wants, key=lambda want: (want.turn, want.level))
        if not keeps(lease.claim(own), first(others, self._quantum()), self._quantum()):
            return False
        self._take_from(lease, own)
        return True

    def _lend(self, now: float) -> dict[str, BookedLease]:
        """Lend what is free, and recall idle slots for those that still wait. Returns the leases that changed."""
        changed: dict[str, BookedLease] = {}
        while self.free > 0 and (claims := self._claims(now)):
            chosen = first(claims, self._quantum())
            lease = self._leases[chosen.router]
            self._take_from(lease, chosen.want)
            lease.may = lease.promised + 1
            self.moves += 1
            changed[lease.router] = lease
        self._check()
        if self.free < 0 or self._claims(now):
            for lease in self._leases.values():
                if lease.may > lease.running and not lease.recalled and not lease.wanted:
                    lease.recalled = True
                    changed[lease.router] = lease
        return changed

    @staticmethod
    def _take_from(lease: BookedLease, want: Want) -> None:
        """One request less is wanted: it has its slot."""
        lighter = want._replace(requests=want.requests - 1, light=max(0, want.light - 1))
        lease.wants = tuple([lighter if each is want else each for each in lease.wants])

    def _grant(self, now: float, lease: BookedLease) -> Grant:
        self._grants += 1
        lease.granted = self.epoch, self._grants
        if lease.unacknowledged_since == inf:
            lease.unacknowledged_since = now
        others: dict[str, float] = {}
        for claim in self._claims(now, but=lease):
            name = claim.want.class_name
            others[name] = min(others.get(name, inf), claim.want.level)
        recall = self.free < 0 or bool(others)
        return Grant(lease.granted, lease.received, lease.may, lease.ttl_s, self.slots, recall, tuple(others.items()))

    def _repeated(self, lease: BookedLease) -> Grant:
        """What was granted last, for an ask that was received before."""
        return Grant(lease.granted, lease.echo, lease.may, lease.ttl_s, self.slots)

    def _void(self, ask: Ask) -> Grant:
        """For a process that has been replaced, and for one router too many: it may use nothing."""
        self._grants += 1
        return Grant((self.epoch, self._grants), ask.stamp, 0, 0.0, self.slots)

    def _check(self) -> None:
        """No slot is promised twice; after the worker has shrunk, the promises only fall."""
        promised = self.promised
        assert promised <= self._ceiling, f"{promised} slots are promised, of {self._ceiling}: {self!r}"
        self._ceiling = max(self.slots + self.look_ahead, promised)

    def __repr__(self) -> str:
        leases = list(self._leases.values())
        return f"<LeaseBook {self.promised} of {self.slots}+{self.look_ahead}: {leases}, {self._unleased!r}>"
