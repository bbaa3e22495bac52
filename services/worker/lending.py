"""A worker's slots, lent to several routers: the book (`core.leases.book`), the routers' streams of grants, the timer.

Each event is decided in the step in which it happens, and nothing here is awaited by a request. A grant goes to the
stream of its router, if the process that it is meant for has opened it: `Grant.echo` has the epoch of that process's
asks. Without a stream it is dropped: values are absolute, and the answer to the next ask has them all.

A request holds its slot as a `Loan`, from its arrival to its end. Requests without an ask (of one router that stands
alone, of a person with curl) are counted, and change nothing while no router has a lease.

Bounds: one stream for each of MAX_ROUTERS routers, and of each stream the newest grant only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from services.contracts.lease import LeaseAsk, LeaseGrant
from services.core.leases.book import MAX_ROUTERS, Grants, LeaseBook
from services.core.leases.messages import NEVER, Grant
from services.core.outcome import Outcome
from services.runtime.clock import unix_milliseconds
from services.runtime.errors import BadInput, Refused
from services.runtime.leasewire import ask_of, wire_grant

EXPIRY_SLACK_S = 0.001
"""A lease ends after its last moment, and a timer of the loop may fire a little early."""


@dataclass(eq=False, slots=True)
class Loan:
    """One request's slot, as the book counts it. `router` is empty for a request without an ask.

    `grant` is that of the request's end, for its own router, until an answer or the stream takes it along.
    """

    router: str = ""
    epoch: int = 0
    grant: Grant | None = None


class PushedGrants:
    """The stream of one router's process: the newest grant that was not sent yet. For a single reader."""

    __slots__ = ("_offered", "_pending", "_waiter", "epoch", "is_over", "last", "router")

    def __init__(self, router: str, epoch: int) -> None:
        self.router = router
        self.epoch = epoch
        self.is_over = False
        self.last: Grant | None = None
        """The newest grant that was made for this process, on whatever way it goes there."""
        self._offered = NEVER
        self._pending: Grant | None = None
        self._waiter: asyncio.Future[None] | None = None

    def note(self, grant: Grant) -> None:
        """A grant that goes to the router in an answer."""
        if self.last is None or grant.stamp > self.last.stamp:
            self.last = grant

    def offer(self, grant: Grant) -> None:
        """Send this grant in place of one that was not sent yet; not if it is older than another that was offered."""
        self.note(grant)
        if grant.stamp > self._offered:
            self._offered, self._pending = grant.stamp, grant
            self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    async def is_offered(self) -> bool:
        """Wait for a grant. False: the stream is over."""
        while self._pending is None and not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return not self.is_over

    def take(self) -> Grant:
        """Remove and return the grant to send."""
        grant, self._pending = self._pending, None
        assert grant is not None, f"no grant was offered: {self!r}"
        return grant

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        state = "over" if self.is_over else "open"
        return f"<PushedGrants of {self.router}/{self.epoch}, {state}, to send {self._pending}>"


class Lending:
    """What one worker lends. `epoch`: when the worker started, in milliseconds since 1970; by default now."""

    def __init__(self, epoch: int | None = None) -> None:
        self.book = LeaseBook(unix_milliseconds() if epoch is None else epoch, 0)
        self._streams: dict[str, PushedGrants] = {}  # by router
        self._is_leaving = False
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = inf  # what the timer waits for

    # Asks

    def answer(self, sent: LeaseAsk) -> LeaseGrant:
        """An ask that came alone: its answer. Grants of others are pushed."""
        ask = ask_of(sent)
        grants = self.book.receive(_now(), ask)
        own = grants.pop(ask.router)
        self._note(ask.router, own)
        self._push_all(grants)
        return wire_grant(own)

    def receive(self, sent: LeaseAsk) -> None:
        """An ask that came with a request. Its own grant is pushed only if it changes what the router may use: else the
        request's answer, or that of the next ask, brings a newer one.
        """
        ask = ask_of(sent)
        grants = self.book.receive(_now(), ask)
        own = grants.pop(ask.router)
        stream = self._stream_for(ask.router, own)
        if stream is not None and not _is_same(own, stream.last):
            stream.offer(own)
        self._push_all(grants)

    # Requests

    def borrow(self, sent: LeaseAsk | None) -> Loan | None:
        """A slot for a request that arrives, with its ask, which was received. None: there is no slot for it."""
        if sent is None:
            loan, grants = Loan(), self.book.start_without_lease(_now())
        else:
            loan = Loan(sent.router, sent.stamp[0])
            grants = self.book.start(_now(), loan.router, loan.epoch)
        if grants is None:
            return None
        self._push_all(grants)
        return loan

    def give_back(self, loan: Loan) -> None:
        """The request has ended, for any reason: once for each loan. `loan.grant` is what its answer should carry."""
        if not loan.router:
            grants = self.book.end_without_lease(_now())
        else:
            grants = self.book.end(_now(), loan.router, loan.epoch)
            own = grants.get(loan.router)
            if own is not None and own.echo[0] == loan.epoch:  # else it is for another process of this name
                loan.grant = grants.pop(loan.router)
                self._note(loan.router, own)
        self._push_all(grants)
        if self._is_leaving:
            self._end_idle_streams()

    def push_rest(self, loan: Loan) -> None:
        """Push the grant of a request's end that no answer has carried."""
        grant, loan.grant = loan.grant, None
        if grant is not None:
            self._push(loan.router, grant)

    # Slots

    def resize(self, slots: int) -> None:
        """Set the number of slots; 0 while there is no engine. Nothing is taken back before requests end."""
        if slots != self.book.slots:
            self._push_all(self.book.resize(_now(), slots))

    def leave(self) -> None:
        """The worker drains: it recalls what is idle. The streams end with the last request."""
        self._is_leaving = True
        self.resize(0)
        self._end_idle_streams()

    def stop(self) -> None:
        """End the streams and the timer."""
        self._is_leaving = True
        self._end_streams()
        if self._timer is not None:
            self._timer.cancel()
        self._expires_at = -inf  # nothing is earlier: no timer is made again

    # Streams

    def open(self, router: str, epoch: int) -> PushedGrants:
        """The stream of this process, in place of an older one of the same name.

        Raises BadInput, 409, if a newer process has a stream open, and Refused, 503, above MAX_ROUTERS streams, or
        while the worker drains.
        """
        if self._is_leaving:
            raise Refused(Outcome.DRAINING, "this worker is shutting down and lends nothing more")
        older = self._streams.get(router)
        if older is not None and epoch < older.epoch:
            raise BadInput(
                f"epoch: {epoch} is below {older.epoch}, that of the stream which {router} has open", "epoch",
                status=409, code="older_epoch",
            )  # fmt: skip
        if older is None and len(self._streams) >= MAX_ROUTERS:
            self._make_room()
        stream = self._streams[router] = PushedGrants(router, epoch)
        if older is not None:
            older.end()
            if older.epoch != epoch:
                self._push_all(self.book.disconnect(_now(), router, older.epoch))
        return stream

    def close(self, stream: PushedGrants) -> None:
        """The stream has ended, and the lease with it, unless another stream has replaced it. May be called again."""
        stream.end()
        if self._streams.get(stream.router) is stream:
            del self._streams[stream.router]
            self._push_all(self.book.disconnect(_now(), stream.router, stream.epoch))

    def _make_room(self) -> None:
        """End the oldest stream without a lease: its host may be gone, which an open connection does not show."""
        leased = {lease.router for lease in self.book.leases()}
        idle = next((stream for name, stream in self._streams.items() if name not in leased), None)
        if idle is None:
            raise Refused(
                Outcome.NO_CAPACITY, f"{MAX_ROUTERS} routers have leases here, which is the limit",
                reason="too_many_routers",
            )  # fmt: skip
        self.close(idle)

    def _end_idle_streams(self) -> None:
        if not self.book.running:
            self._end_streams()

    def _end_streams(self) -> None:
        for stream in self._streams.values():
            stream.end()

    # Grants

    def _push_all(self, grants: Grants) -> None:
        """After every call of the book: push its grants, and wake when the next lease ends."""
        for router, grant in grants.items():
            self._push(router, grant)
        at = self.book.wakes_at()
        if at < self._expires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._expires_at = at
            self._timer = asyncio.get_running_loop().call_at(at + EXPIRY_SLACK_S, self._expire)

    def _push(self, router: str, grant: Grant) -> None:
        stream = self._stream_for(router, grant)
        if stream is not None:
            stream.offer(grant)

    def _note(self, router: str, grant: Grant) -> None:
        stream = self._stream_for(router, grant)
        if stream is not None:
            stream.note(grant)

    def _stream_for(self, router: str, grant: Grant) -> PushedGrants | None:
        """The stream of the process that the grant is for. One of the same name must not take it for its own."""
        stream = self._streams.get(router)
        return stream if stream is not None and stream.epoch == grant.echo[0] else None

    def _expire(self) -> None:
        self._timer, self._expires_at = None, inf
        self._push_all(self.book.expire(_now()))

    def __repr__(self) -> str:
        return f"<Lending {self.book!r}, streams {list(self._streams.values())}>"


def _is_same(grant: Grant, last: Grant | None) -> bool:
    """Whether it lets the router use what the last grant let it use."""
    return last is not None and (grant.may, grant.recall) == (last.may, last.recall)


def _now() -> float:
    return asyncio.get_running_loop().time()
