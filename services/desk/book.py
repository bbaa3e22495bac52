"""The slots of a server that cannot lend, by what its routers say: the requests themselves do not pass here.

    counted    what a router says that it has in flight at the server, in each ask and at each start and end
    promised   max(may, counted) of each router, as in `core.leases.book`

A router gives its slot back at the end of each request, with an ask; so `may` falls only as a router itself has said,
and the desk lends the slot again. Nothing is taken from a router that could still use it.

A router that is gone (its stream has ended, or its lease) may still have `may` requests at the server: these slots stay
taken for `hold_s`, or until a process of its name says how many there are. A desk that starts knows nothing, so for
LEARN_S it lends nothing and only counts.

The slots may be learned (`learned.py`). They fall as those of a worker that shrinks: nothing is taken back, and nothing
is lent before fewer are promised. A desk that starts does not know the limit of the one before it either, so until it
lends it counts up to `max_slots`.

So at most `slots` requests are at the server, while every router that has some there reaches the desk within LEARN_S of
its start, and what a lost router has there ends within `hold_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from services.contracts.lease import EndedRequest
from services.core.leases.book import Grants, LeaseBook
from services.core.leases.bookedlease import BookedLease
from services.core.leases.messages import Ask
from services.desk.learned import LearnedSlots

LEARN_S = 5.0
"""Longer than any lease of a desk before this one, and than a router takes to come back to a desk that is up again."""


class DeskBook:
    """The book of one server. Methods return the grants to send, as those of `LeaseBook` do.

    `epoch`: when the desk started, in milliseconds since 1970. Raises ValueError for negative slots.
    """

    __slots__ = ("_book", "_granting_from", "_held_until", "_hold_s", "_learned", "_left", "_open")

    def __init__(self, epoch: int, slots: int | LearnedSlots, hold_s: float) -> None:
        if isinstance(slots, LearnedSlots):
            self._learned: LearnedSlots | None = slots
            self._book = LeaseBook(epoch, slots.slots, look_ahead=slots.max_slots - slots.slots)
        else:
            self._learned = None
            self._book = LeaseBook(epoch, slots)
        self._hold_s = hold_s
        self._granting_from = inf
        self._open: dict[str, tuple[int, int]] = {}  # by router: the epoch of its stream, the number of its last count
        self._left: dict[str, dict[int, int]] = {}  # by router and epoch: requests that no lease covers, counted
        self._held_until: dict[str, float] = {}  # by router that is gone: until when its requests are counted

    def begin(self, now: float) -> None:
        """The desk has started."""
        self._granting_from = now + LEARN_S

    @property
    def slots(self) -> int:
        """Of the server."""
        return self._book.slots

    @property
    def promised(self) -> int:
        """Slots that are promised or in use."""
        return self._book.promised

    @property
    def held(self) -> int:
        """Slots that are kept for requests of routers that are gone."""
        return sum([sum(self._left.get(router, {}).values()) for router in self._held_until])

    @property
    def moves(self) -> int:
        """Slots that were lent so far to a router that had not had them."""
        return self._book.moves

    def leases(self) -> list[BookedLease]:
        """All leases, in the order in which their routers came."""
        return self._book.leases()

    # ---- messages

    def open(self, router: str, epoch: int) -> None:
        """The process has opened its stream; of an older one `disconnect` was called."""
        if self._open.get(router, (-1, 0))[0] != epoch:
            self._open[router] = epoch, 0

    def receive(
        self,
        now: float,
        ask: Ask,
        number: int,
        in_flight: int,
        ended: Sequence[EndedRequest] = (),
        overloaded: int = 0,
    ) -> Grants | None:
        """A router asks, and says that it has so many requests in flight at the server, and how others have ended
        (`LeaseAsk`). The last grant of its own answers it. None: it is not heard, since its process has no stream, or a
        stream of this epoch has ended, as one that its router gave up while the desk was frozen.
        """
        router, epoch = ask.router, ask.stamp[0]
        if self._open.get(router, (-1, 0))[0] != epoch or self._book.is_over(ask):
            return None
        grants = self._lapse(now)
        if number > self._open[router][1]:
            self._open[router] = epoch, number
            self._held_until.pop(router, None)
            before = self._book.running
            grants |= self._count(now, router, epoch, in_flight)
            if now >= self._granting_from:
                grants |= self._learn(now, before, ended, overloaded)
        if now < self._granting_from:
            ask = ask._replace(wants=())
        grants |= self._book.receive(now, ask)
        return grants | self._cover(now, router)

    def disconnect(self, now: float, router: str, epoch: int) -> Grants:
        """The stream of this epoch ended: its lease is void, and its slots are held."""
        grants = self._lapse(now)
        if self._open.get(router, (-1, 0))[0] == epoch:
            del self._open[router]
        lease = self._lease(router)
        if lease is not None and lease.epoch == epoch:
            grants |= self._hold(now, lease)
        elif router in self._left:
            self._held_until.setdefault(router, now + self._hold_s)
        return grants | self._book.disconnect(now, router, epoch)

    # ---- time

    def expire(self, now: float) -> Grants:
        """Call at `wakes_at`: slots of leases that have ended are held, and those held long enough are lent."""
        return self._lapse(now) | self._book.expire(now)

    def wakes_at(self) -> float:
        """When the next lease or the next hold ends; infinity without any."""
        return min([self._book.wakes_at(), *self._held_until.values()])

    # ---- inside

    def _lease(self, router: str) -> BookedLease | None:
        return next((lease for lease in self._book.leases() if lease.router == router), None)

    def _lapse(self, now: float) -> Grants:
        grants: Grants = {}
        ended = [lease for lease in self._book.leases() if lease.lapses_at < now]
        for lease in sorted(ended, key=lambda each: each.lapses_at):
            grants |= self._hold(lease.lapses_at, lease)
        self._book.lapse(now)
        if self._book.look_ahead and now >= self._granting_from:  # it has counted, and lends from now on
            self._book.look_ahead = 0
            grants |= self._book.resize(now, self._book.slots)
        for router in [router for router, until in self._held_until.items() if until <= now]:
            del self._held_until[router]
            while router in self._left:
                grants |= self._end_left(now, router)
        return grants

    def _hold(self, at: float, lease: BookedLease) -> Grants:
        """The lease ends: whatever it allowed may be at the server, also what the desk has not heard of."""
        grants: Grants = {}
        router, epoch = lease.router, lease.epoch
        for _ in range(lease.may - lease.running):
            started = self._book.start(at, router, epoch)
            assert started is not None, f"a slot within `may` was refused: {lease!r}"
            grants |= started
        if lease.running:
            left = self._left.setdefault(router, {})
            left[epoch] = left.get(epoch, 0) + lease.running
        if router in self._left:
            self._held_until[router] = at + self._hold_s
        return grants

    def _count(self, now: float, router: str, epoch: int, in_flight: int) -> Grants:
        """Count so many requests of this router: in its lease, or as left by one. Before its ask is received, since
        ends come before the slots that it gives back.
        """
        grants: Grants = {}
        lease = self._lease(router)
        counted = sum(self._left.get(router, {}).values()) + (0 if lease is None else lease.running)
        for _ in range(counted - in_flight):
            if router in self._left:
                grants |= self._end_left(now, router)
            else:
                grants |= self._book.end(now, router, epoch)
        for _ in range(in_flight - counted):
            started = self._book.start(now, router, epoch)
            if started is None:
                break
            grants |= started
            if lease is None:
                left = self._left.setdefault(router, {})
                left[epoch] = left.get(epoch, 0) + 1
        return grants

    def _learn(self, now: float, in_flight: int, ended: Sequence[EndedRequest], overloaded: int) -> Grants:
        """Follow the limit, if it is learned. `in_flight`: over all routers, before these requests had ended."""
        learned = self._learned
        if learned is None:
            return {}
        learned.learn(in_flight, ended, overloaded)
        return {} if learned.slots == self._book.slots else self._book.resize(now, learned.slots)

    def _cover(self, now: float, router: str) -> Grants:
        """Requests that an earlier lease has left count in the present one, as far as its slots go: the router counts
        all of them against these.
        """
        grants: Grants = {}
        lease = self._lease(router)
        if lease is None or router not in self._left:
            return grants
        if self._left[router].pop(lease.epoch, 0) and not self._left[router]:  # the book has taken them over itself
            del self._left[router]
        while router in self._left:
            started = self._book.start(now, router, lease.epoch)
            if started is None:
                break
            grants |= started | self._end_left(now, router)
        return grants

    def _end_left(self, now: float, router: str) -> Grants:
        """One of the requests that no lease covers has ended, or is counted in a lease."""
        left = self._left[router]
        epoch = next(iter(left))
        left[epoch] -= 1
        if not left[epoch]:
            del left[epoch]
        if not left:
            del self._left[router]
        return self._book.end(now, router, epoch)

    def __repr__(self) -> str:
        return f"<DeskBook {self._book!r}, left {self._left}>"
