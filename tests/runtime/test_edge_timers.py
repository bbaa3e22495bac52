"""Every connection has a timer, unless it answers a request; and what is counted is given back.

A connection is driven with random events, in virtual time and without a socket.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.runtime.connection import LINGER_S, MAX_UNREAD_BYTES, Connection
from services.runtime.drain import Drain
from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange
from services.runtime.log import Log
from services.runtime.service import Service
from services.runtime.shared import Shared
from tests import virtual
from tests.runtime.corpus import get, post
from tests.runtime.rig import Tape, api_of

LIMITS = GuardLimits(headers_s=5.0, body_s=20.0, write_stall_s=10.0, incoming_bytes=300_000, body_bytes=100_000)
IDLE_S = 60.0
LONGEST_S = LIMITS.headers_s + LIMITS.body_s + IDLE_S + 2 * LIMITS.write_stall_s + LINGER_S + 1.0
"""What a peer that does nothing any more can make of it: one timer after the other."""


class Peer(Tape):
    """A transport whose client may stop reading: what is written then stays here, as in a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection | None = None
        self.unread = 0
        self.reads = True
        self.paused = self.lost = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert not self.closed
        if self.reads:
            return
        self.unread += len(data)
        if self.unread > MAX_UNREAD_BYTES and not self.paused:
            self.paused = True
            assert self.connection is not None
            self.connection.pause_writing()

    def close(self) -> None:
        self.closed = True
        if not self.unread:
            asyncio.get_running_loop().call_soon(self.abort)

    def abort(self) -> None:
        if not self.lost:
            self.closed = self.lost = True
            assert self.connection is not None
            self.connection.connection_lost(None)

    def read(self, most: int) -> None:
        """The client reads this much."""
        self.unread = max(0, self.unread - most)
        assert self.connection is not None
        if self.paused and self.unread <= MAX_UNREAD_BYTES // 4:
            self.paused = False
            self.connection.resume_writing()
        if self.closed and not self.unread:
            self.abort()


class Stand:
    """One connection, its handlers, and what can happen to it."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        routes: dict[tuple[str, str], Callable[[Exchange], Awaitable[None]]] = {
            ("GET", "/now"): self._now,
            ("POST", "/now"): self._now,
            ("GET", "/big"): self._big,
            ("GET", "/later"): self._later,
            ("GET", "/pieces"): self._pieces,
            ("GET", "/cut"): self._cut,
            ("GET", "/given-up"): self._given_up,
        }
        self.service = Service(
            "test", api_of(routes), log=Log("test", stream=io.BytesIO()), drain=Drain(),
            hot={route: handler for route, handler in routes.items() if route[1] in ("/now", "/big")},
        )  # fmt: skip
        self.shared = Shared(self.service, LIMITS, IDLE_S)
        self.peer = Peer()
        self.peer.connection = self.connection = Connection(self.shared)
        self.connection.connection_made(self.peer)

    async def _now(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"hi")

    async def _big(self, exchange: Exchange) -> None:
        await exchange.reply(200, bytes(22_000))

    async def _later(self, exchange: Exchange) -> None:
        await self.release.wait()
        await exchange.reply(200, b"hi")

    async def _pieces(self, exchange: Exchange) -> None:
        await exchange.start(200, b"text/plain")
        for _ in range(8):
            await exchange.write(bytes(8_192))
        await exchange.end()

    async def _cut(self, exchange: Exchange) -> None:
        await exchange.start(200, b"text/plain")
        raise RuntimeError("it fails")

    async def _given_up(self, exchange: Exchange) -> None:
        exchange.let_go()

    def happens(self, event: tuple[str, object]) -> None:
        kind, value = event
        if self.peer.lost:
            return
        if kind == "data" and self.peer.reading and not self.peer.closed:
            assert isinstance(value, bytes)
            self.connection.data_received(value)
        elif kind == "reads":
            self.peer.reads = bool(value)
            if value:
                self.peer.read(1 << 30)
        elif kind == "reads some":
            self.peer.read(8_000)
        elif kind == "eof" and not self.peer.closed:
            if not self.connection.eof_received():
                self.peer.close()
        elif kind == "release":
            self.release.set()
            self.release = asyncio.Event()
        elif kind == "leave":
            self.connection.shutdown()

    def answers(self) -> bool:
        """Whether a handler is alive that has this connection's answer to give."""
        answering = self.connection._answering
        return answering is not None and answering.task is not None and not answering.task.done()

    def timers(self) -> int:
        armed = (self.connection._part_timer, self.connection._idle_timer, self.connection._stall_timer)
        now = asyncio.get_running_loop().time()
        return sum(timer is not None and not timer.cancelled() and timer.when() > now for timer in armed)

    async def settled(self) -> None:
        for _ in range(40):
            await asyncio.sleep(0)

    async def ends(self) -> None:
        """The peer does nothing any more, and handlers come to their end."""
        for _ in range(50):
            self.happens(("release", None))
            await self.settled()
        await asyncio.sleep(LONGEST_S)
        for task in list(self.shared.tasks):
            task.cancel()
        await self.settled()
        self.service.log.close()


DATA = [
    get(b"/now"), get(b"/big"), get(b"/later"), get(b"/pieces"), get(b"/cut"), get(b"/given-up"),
    get(b"/now", b"connection: close"), get(b"/big", b"connection: close"), get(b"/big") * 5,
    get(b"/now") * 80, get(b"/later") * 40, post(b"x" * 20_000, path=b"/now"), post(b"x" * 99_000, path=b"/now") * 4,
    post(b"x" * 99_000, path=b"/now")[:-500], b"x" * 500, b"GET /no", b"\r\n", b"\x00",
    b"w HTTP/1.1\r\nhost: t\r\n\r\n",
    get(b"/now", b"transfer-encoding: chunked", method=b"POST") + b"5\r\nhello\r\n", b"0\r\n\r\n",
    get(b"/now", b"content-length: 200000", method=b"POST"),
]  # fmt: skip
EVENTS = st.one_of(
    st.sampled_from(DATA).map(lambda data: ("data", data)),
    st.booleans().map(lambda reads: ("reads", reads)),
    st.sampled_from([("eof", None), ("release", None), ("leave", None), ("reads some", None)]),
    st.sampled_from([1.0, 4.0, 11.0, 30.0]).map(lambda seconds: ("passes", seconds)),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(EVENTS, max_size=14))
@example([("reads", False), ("data", get(b"/big", b"connection: close"))])
@example([("reads", False), ("data", get(b"/now")), ("eof", None)])
@example([("reads", False), ("data", get(b"/now") + b"\x00")])
@example([("reads", False), ("data", get(b"/big") * 5), ("leave", None), ("reads some", None)])
@example([("reads", False), ("data", get(b"/big", b"connection: close")), ("reads some", None), ("reads some", None)])
@example([("data", get(b"/given-up"))])
@example([("data", get(b"/later") * 40), ("eof", None)])
def test_a_connection_that_does_not_answer_has_a_timer_and_ends(events: list[tuple[str, object]]) -> None:
    async def main() -> None:
        stand = Stand()
        for event in events:
            if event[0] == "passes":
                await asyncio.sleep(float(event[1]))  # type: ignore[arg-type]
            stand.happens(event)
            await stand.settled()
            if not stand.peer.lost and not stand.answers():
                assert stand.timers(), (event, stand.connection)
        await stand.ends()
        assert stand.peer.lost, stand.connection
        assert (stand.shared.places.taken, stand.shared.incoming.taken) == (0, 0)
        assert not stand.shared.connections

    virtual.run(main())


@pytest.mark.parametrize(
    "events",
    [
        [("data", get(b"/big", b"connection: close"))],
        [("data", get(b"/big") * 6)],
        [("data", get(b"/now")), ("eof", None)],
        [("data", b"\x00")],
        [("data", get(b"/now")), ("leave", None)],
    ],
    ids=["an answer that closes", "a pipeline", "a half-closed connection", "a refusal", "a drain"],
)
def test_a_client_that_never_reads_is_cut_off_in_the_time_to_stall(events: list[tuple[str, object]]) -> None:
    async def main() -> None:
        stand = Stand()
        stand.peer.reads = False
        for event in events:
            stand.happens(event)
            await stand.settled()
        assert not stand.peer.lost
        await asyncio.sleep(LIMITS.write_stall_s + 0.1)
        assert stand.peer.lost, stand.connection
        await stand.ends()

    virtual.run(main())


def test_a_client_that_keeps_an_answer_unread_is_cut_off_after_its_idle_time() -> None:
    """The answer is too small to hold a handler back, and the connection is kept alive."""

    async def main() -> None:
        stand = Stand()
        stand.peer.reads = False
        stand.happens(("data", get(b"/now")))
        await asyncio.sleep(IDLE_S + 0.1)
        assert stand.peer.closed
        assert not stand.peer.lost
        await asyncio.sleep(LIMITS.write_stall_s)
        assert stand.peer.lost
        await stand.ends()

    virtual.run(main())


def test_a_client_that_reads_all_but_the_end_of_a_last_answer_is_cut_off() -> None:
    """Reading stops the stall timer of an answer under way. A connection that is to be closed needs it to the end."""

    async def main() -> None:
        stand = Stand()
        stand.peer.reads = False
        stand.happens(("data", get(b"/big", b"connection: close")))
        await stand.settled()
        stand.peer.read(stand.peer.unread - 1_000)
        assert stand.peer.closed
        assert not stand.peer.lost
        await asyncio.sleep(LIMITS.write_stall_s + 0.1)
        assert stand.peer.lost
        await stand.ends()

    virtual.run(main())


def test_one_connection_too_many_that_never_reads_is_cut_off() -> None:
    async def main() -> None:
        stand = Stand()
        stand.shared.places.limit = 1
        peer = Peer()
        peer.reads = False
        peer.connection = Connection(stand.shared)
        peer.connection.connection_made(peer)
        assert peer.unread
        await asyncio.sleep(LIMITS.write_stall_s + 0.1)
        assert peer.lost
        await stand.ends()

    virtual.run(main())
