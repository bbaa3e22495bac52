"""What is lent to several routers, as they hear of it: a stream of grants for each, and one timer.

Each event is decided in the step in which it happens, and nothing here is awaited by a request. A grant goes to the
stream of its router, if the process that it is meant for has opened it: `Grant.echo` has the epoch of that process's
asks. Without a stream it is dropped: values are absolute, and the answer to the next ask has them all.

Bounds: one stream for each of MAX_ROUTERS routers, and of each stream the newest grant only.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

from services.core.leases.book import MAX_ROUTERS, Grants
from services.core.leases.bookedlease import BookedLease
from services.core.leases.messages import NEVER, Grant
from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused

EXPIRY_SLACK_S = 0.001
"""A lease ends after its last moment, and a timer of the loop may fire a little early."""


class Book(Protocol):
    """Who has been lent what (`core.leases.book`)."""

    def leases(self) -> list[BookedLease]: ...

    def disconnect(self, now: float, router: str, epoch: int) -> Grants: ...

    def expire(self, now: float) -> Grants: ...

    def wakes_at(self) -> float: ...


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


class GrantStreams:
    """The streams of one book's grants, by router."""

    service = "worker"
    """Who lends, for people."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._streams: dict[str, PushedGrants] = {}  # by router
        self.is_leaving = False
        """Nothing more is lent: no stream is opened."""
        self._timer: asyncio.TimerHandle | None = None
        self._expires_at = inf  # what the timer waits for

    def stop(self) -> None:
        """End the streams and the timer."""
        self.is_leaving = True
        self.end_streams()
        if self._timer is not None:
            self._timer.cancel()
        self._expires_at = -inf  # nothing is earlier: no timer is made again

    # Streams

    def open(self, router: str, epoch: int) -> PushedGrants:
        """The stream of this process, in place of an older one of the same name.

        Raises BadInput, 409, if a newer process has a stream open, and Refused, 503, above MAX_ROUTERS streams, or
        while the service drains.
        """
        if self.is_leaving:
            raise Refused(Outcome.DRAINING, f"this {self.service} is shutting down and lends nothing more")
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
                self.push_all(self._book.disconnect(loop_time(), router, older.epoch))
        return stream

    def close(self, stream: PushedGrants) -> None:
        """The stream has ended, and the lease with it, unless another stream has replaced it. May be called again."""
        stream.end()
        if self._streams.get(stream.router) is stream:
            del self._streams[stream.router]
            self.push_all(self._book.disconnect(loop_time(), stream.router, stream.epoch))

    def _make_room(self) -> None:
        """End the oldest stream without a lease: its host may be gone, which an open connection does not show."""
        leased = {lease.router for lease in self._book.leases()}
        idle = next((stream for name, stream in self._streams.items() if name not in leased), None)
        if idle is None:
            raise Refused(
                Outcome.NO_CAPACITY, f"{MAX_ROUTERS} routers have leases here, which is the limit",
                reason="too_many_routers",
            )  # fmt: skip
        self.close(idle)

    def end_streams(self) -> None:
        """End all streams, and the leases with them."""
        for stream in self._streams.values():
            stream.end()

    # Grants

    def push_all(self, grants: Grants) -> None:
        """After every call of the book: push its grants, and wake when the next lease ends."""
        for router, grant in grants.items():
            self.push(router, grant)
        at = self._book.wakes_at()
        if at < self._expires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._expires_at = at
            self._timer = asyncio.get_running_loop().call_at(at + EXPIRY_SLACK_S, self._expire)

    def push(self, router: str, grant: Grant) -> None:
        """Send it on the stream of its router."""
        stream = self.stream_for(router, grant)
        if stream is not None:
            stream.offer(grant)

    def note(self, router: str, grant: Grant) -> None:
        """It goes to its router on another way."""
        stream = self.stream_for(router, grant)
        if stream is not None:
            stream.note(grant)

    def stream_for(self, router: str, grant: Grant) -> PushedGrants | None:
        """The stream of the process that the grant is for. One of the same name must not take it for its own."""
        stream = self._streams.get(router)
        return stream if stream is not None and stream.epoch == grant.echo[0] else None

    def _expire(self) -> None:
        self._timer, self._expires_at = None, inf
        self.push_all(self._book.expire(loop_time()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._book!r}, streams {list(self._streams.values())}>"


def loop_time() -> float:
    """The running event loop's clock, in seconds."""
    return asyncio.get_running_loop().time()
