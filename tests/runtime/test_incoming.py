"""How much of what a client sends is kept before a handler has it: counted in requests and bytes, not in seconds."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.runtime import guard
from services.runtime.connection import (
    LARGE_BODY_BYTES,
    MAX_ANSWERS_PER_STEP,
    MAX_PIPELINED,
    MAX_REFUSED,
    Connection,
)
from services.runtime.guard import REQUEST_BYTES, GuardLimits, Inbound
from services.runtime.http import Exchange
from services.runtime.serve import HttpListener
from services.runtime.shared import IDLE_FOR_LONG_S, Shared
from tests.runtime.corpus import get, post
from tests.runtime.rig import Tape, ask, build, send, serving
from tests.runtime.rig import post as post_text
from tests.virtual import run

A_READ = 262_144  # bytes; what an event loop reads at once
SMALLEST = b"GET /wait HTTP/1.1\r\nhost:a\r\n\r\n"


class From(Tape):
    """A transport whose client has an address."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__()
        self.address = address
        self.aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self.address, 4711) if name == "peername" else default

    def abort(self) -> None:
        self.aborted = self.closed = True


class Stand:
    """A listener's connections without sockets; `/wait` answers when `release` is set."""

    def __init__(self, limits: GuardLimits) -> None:
        self.release = asyncio.Event()
        routes = {
            ("GET", "/wait"): self._wait,
            ("POST", "/wait"): self._wait,
            ("GET", "/echo"): self._echo,
            ("POST", "/echo"): self._echo,
        }
        self._built = build(routes, eager=["/echo"])
        listener = self._built.listener
        assert isinstance(listener, HttpListener)
        self.shared = Shared(listener.app, limits, 60.0)

    async def _wait(self, exchange: Exchange) -> None:
        await self.release.wait()
        await exchange.reply(200, b"")

    async def _echo(self, exchange: Exchange) -> None:
        await exchange.reply(200, exchange.body)

    def connect(self, address: str = "192.0.2.1") -> tuple[From, Connection]:
        tape, connection = From(address), Connection(self.shared)
        connection.connection_made(tape)
        return tape, connection

    def close(self) -> None:
        for connection in list(self.shared.connections):
            connection.connection_lost(None)
        self._built.log.close()


@asynccontextmanager
async def standing(limits: GuardLimits | None = None) -> AsyncIterator[Stand]:
    stand = Stand(limits or GuardLimits())
    yield stand
    stand.close()
    assert (stand.shared.places.taken, stand.shared.incoming.taken) == (0, 0)


async def settled(turns: int = 20) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def status(tape: Tape) -> int:
    return int(tape.written.split(b" ", 2)[1])


def reason(tape: Tape) -> str:
    return str(json.loads(tape.written.partition(b"\r\n\r\n")[2])["error"]["details"]["reason"])


# Pipelines


def test_a_read_full_of_requests_becomes_no_more_of_them_than_may_wait() -> None:
    async def main() -> None:
        async with standing() as stand:
            tape, connection = stand.connect()
            flood = SMALLEST * (A_READ // len(SMALLEST))
            connection.data_received(flood)
            await settled()
            made = [one for one in gc.get_objects() if isinstance(one, Exchange) and one._wire is connection]
            assert len(made) <= MAX_ANSWERS_PER_STEP
            assert not tape.reading
            assert stand.shared.incoming.taken <= len(flood) + MAX_ANSWERS_PER_STEP * REQUEST_BYTES

    run(main())


def test_what_stays_as_bytes_is_answered_in_the_end() -> None:
    async def main() -> None:
        async with standing() as stand:
            tape, connection = stand.connect()
            connection.data_received(SMALLEST * 500)
            stand.release.set()
            await settled(500 * 10)
            assert tape.written.count(b"HTTP/1.1 200 ") == 500
            assert tape.reading
            assert stand.shared.incoming.taken == 0

    run(main())


def test_what_comes_behind_an_answer_is_parsed_up_to_what_may_wait() -> None:
    async def main() -> None:
        async with standing() as stand:
            _, connection = stand.connect()
            connection.data_received(SMALLEST)
            connection.data_received(SMALLEST * 5_000)
            assert len(connection._inbound.queue) == MAX_PIPELINED + 1

    run(main())


@pytest.mark.parametrize("unit", [SMALLEST, b"\r\n", post(b"x" * 100), b"GET /wait HTTP/1.1\r\nhost:a\r\nx: \r\n\r\n"])
def test_the_bytes_that_are_looked_at_grow_as_the_read_does(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed once, however large the read is that it came with."""
    fed: list[int] = []

    class Counting:
        def __init__(self, parser: object) -> None:
            self._parser = guard.httptools.parser.HttpRequestParser(parser)

        def __getattr__(self, name: str) -> object:
            return getattr(self._parser, name)

        def feed_data(self, data: bytes) -> None:
            fed.append(len(data))
            self._parser.feed_data(data)

    class Wire:
        behind = False

    monkeypatch.setattr(guard.httptools, "HttpRequestParser", Counting)
    limits = GuardLimits(header_bytes=1 << 30)
    for size in (16_384, 65_536):
        data = unit * (size // len(unit))
        fed.clear()
        inbound, at = Inbound(limits, Wire()), 0  # type: ignore[arg-type]
        while at < len(data):
            at = inbound.take(data, at)
        assert sum(fed) == len(data)
        assert len(fed) <= 2 * len(data) // len(unit) + 2


def test_a_large_body_is_parsed_in_two_pieces() -> None:
    """Its head, and the rest: a prompt of 100 KB costs no more steps than a small one."""
    taken: list[int] = []
    data = post(b"\r\n\r\n" * 25_000)

    class Wire:
        behind = False

    inbound = Inbound(GuardLimits(), Wire())  # type: ignore[arg-type]
    at = 0
    while at < len(data):
        at = inbound.take(data, at)
        taken.append(at)
    assert taken == [len(data)]
    assert inbound.queue[0].body == b"\r\n\r\n" * 25_000


# Bytes before a handler


def test_a_body_is_counted_from_its_head_until_its_handler_starts() -> None:
    async def main() -> None:
        async with standing() as stand:
            tape, connection = stand.connect()
            data = post(b"x" * 100_000)
            connection.data_received(data[:200])
            assert 100_000 <= stand.shared.incoming.taken <= 100_000 + REQUEST_BYTES
            connection.data_received(data[200:90_000])
            assert 100_000 <= stand.shared.incoming.taken <= 100_000 + REQUEST_BYTES
            connection.data_received(data[90_000:])
            assert stand.shared.incoming.taken == 0
            assert status(tape) == 200

    run(main())


def test_a_body_in_chunks_is_counted_as_it_grows() -> None:
    async def main() -> None:
        async with standing() as stand:
            _, connection = stand.connect()
            connection.data_received(get(b"/echo", b"transfer-encoding: chunked", method=b"POST"))
            before = stand.shared.incoming.taken
            for grown in (10_000, 20_000, 30_000):
                connection.data_received(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                assert stand.shared.incoming.taken == before + grown

    run(main())


@pytest.mark.parametrize(
    ("addresses", "named"),
    [(["192.0.2.1"] * 8, "source_incoming_bytes"), ([f"192.0.2.{n}" for n in range(8)], "incoming_bytes")],
    ids=["one source", "many sources"],
)
def test_a_body_for_which_there_is_no_room_is_refused_before_it_is_sent(addresses: list[str], named: str) -> None:
    async def main() -> None:
        limits = GuardLimits(incoming_bytes=1_000_000, body_bytes=200_000, source_share=0.5)
        async with standing(limits) as stand:
            head = get(b"/echo", b"content-length: 190000", b"expect: 100-continue", method=b"POST")
            tapes = []
            for address in addresses:
                tape, connection = stand.connect(address)
                connection.data_received(head)
                tapes.append(tape)
            refused = [tape for tape in tapes if b" 503 " in tape.written]
            most = 500_000 if named.startswith("source") else 1_000_000
            assert len(tapes) - len(refused) == most // 191_024
            assert stand.shared.incoming.taken <= most
            assert {reason(tape) for tape in refused} == {named}
            assert all(tape.closed and b"retry-after" in tape.written for tape in refused)
            assert not any(b"100 Continue" in tape.written for tape in refused)

    run(main())


LARGE = LARGE_BODY_BYTES + 1


def in_reads(connection: Connection, data: bytes) -> None:
    """As an event loop brings it."""
    for at in range(0, len(data), A_READ):
        connection.data_received(data[at : at + A_READ])


@pytest.mark.parametrize(("size", "counted"), [(LARGE, LARGE), (LARGE_BODY_BYTES, 0)], ids=["large", "not large"])
def test_a_large_body_counts_until_its_request_is_answered(size: int, counted: int) -> None:
    async def main() -> None:
        async with standing() as stand:
            tape, connection = stand.connect()
            for _ in range(2):  # on a connection that stays open
                in_reads(connection, post(b"x" * size, path=b"/wait"))
                await settled()
                assert stand.shared.incoming.taken == counted
                stand.release.set()
                await settled()
                assert stand.shared.incoming.taken == 0
                stand.release.clear()
            assert tape.written.count(b"HTTP/1.1 200") == 2

    run(main())


def test_a_large_body_no_longer_counts_when_its_client_has_left() -> None:
    async def main() -> None:
        async with standing() as stand:
            _, connection = stand.connect()
            in_reads(connection, post(b"x" * LARGE, path=b"/wait"))
            await settled()
            assert stand.shared.incoming.taken == LARGE
            connection.connection_lost(None)
            assert stand.shared.incoming.taken == 0

    run(main())


def test_large_bodies_that_are_answered_leave_no_room_for_more_of_them_and_what_is_small_goes_on() -> None:
    async def main() -> None:
        async with standing(GuardLimits(incoming_bytes=3 * LARGE)) as stand:
            tapes = []
            for _ in range(5):
                tape, connection = stand.connect()
                in_reads(connection, post(b"x" * LARGE, path=b"/wait"))
                tapes.append(tape)
                await settled()
            refused = [tape for tape in tapes if b" 503 " in tape.written]
            assert refused == tapes[3:] or refused == tapes[2:]
            assert {reason(tape) for tape in refused} == {"incoming_bytes"}
            assert stand.shared.incoming.taken <= 3 * LARGE
            tape, connection = stand.connect()
            connection.data_received(post(b"x"))
            await settled()
            assert status(tape) == 200
            stand.release.set()
            await settled()
            assert stand.shared.incoming.taken == 0

    run(main())


def test_a_pipeline_behind_a_large_body_that_is_refused_leaves_that_body_counted() -> None:
    async def main() -> None:
        async with standing(GuardLimits(incoming_bytes=2 * LARGE, body_bytes=2 * LARGE)) as stand:
            tape, connection = stand.connect()
            in_reads(connection, post(b"x" * LARGE, path=b"/wait"))
            await settled()
            connection.data_received(post(b"x" * 2 * LARGE)[:1000])
            assert stand.shared.incoming.taken == LARGE
            stand.release.set()
            await settled()
            assert (tape.written.count(b"HTTP/1.1 200"), tape.written.count(b"HTTP/1.1 503")) == (1, 1)
            assert stand.shared.incoming.taken == 0

    run(main())


def test_a_flood_of_pipelines_is_refused_beyond_the_bytes_that_may_be_kept() -> None:
    async def main() -> None:
        async with standing(GuardLimits(incoming_bytes=1_000_000, body_bytes=100_000)) as stand:
            tapes = []
            for _ in range(20):
                tape, connection = stand.connect()
                connection.data_received(SMALLEST)
                connection.data_received(SMALLEST * 8_000)
                tapes.append(tape)
            assert stand.shared.incoming.taken <= 1_000_000
            assert sum(len(connection._unparsed) for connection in stand.shared.connections) <= 1_000_000
            assert sum(len(connection._inbound.queue) for connection in stand.shared.connections) < 5 * MAX_PIPELINED
            stand.release.set()
            await settled(200)
            assert sum(b" 503 " in tape.written for tape in tapes) >= 15

    run(main())


def test_one_source_may_always_send_the_largest_body_that_is_taken() -> None:
    limits = GuardLimits(incoming_bytes=1_048_576, source_share=0.01)
    assert limits.incoming_bytes_per_source >= limits.body_bytes


# Connections


def test_one_source_leaves_connections_to_the_others_and_gets_its_own_back() -> None:
    async def main() -> None:
        async with standing(GuardLimits(connections=8, source_share=0.25)) as stand:
            held = [stand.connect("192.0.2.1") for _ in range(2)]
            tape, connection = stand.connect("192.0.2.1")
            assert (status(tape), reason(tape)) == (429, "source_connections")
            connection.connection_lost(None)
            assert not stand.connect("192.0.2.2")[0].closed
            held[0][1].connection_lost(None)
            assert not stand.connect("192.0.2.1")[0].closed

    run(main())


def test_a_newcomer_takes_the_place_of_the_connection_that_has_been_idle_the_longest() -> None:
    async def main() -> None:
        async with standing(GuardLimits(connections=8, source_share=0.5)) as stand:
            crowd = []
            for n in (1, 1, 1, 1, 2, 2, 2, 2):
                crowd.append(stand.connect(f"192.0.2.{n}"))
                await asyncio.sleep(0.5)
            for _, connection in crowd[:3]:
                connection.data_received(SMALLEST)  # a handler answers it
            crowd[3][1].data_received(get(b"/echo"))  # it has just been answered
            crowd[4][1].data_received(b"GET /wait HT")  # it has asked nothing yet
            tape, connection = stand.connect("192.0.2.3")
            assert not tape.closed
            connection.data_received(get())
            await settled()
            assert status(tape) == 200
            assert [one.aborted for one, _ in crowd] == [n == 4 for n in range(8)]
            assert stand.shared.places.taken == 8

    run(main())


def test_a_connection_that_has_only_just_come_or_been_answered_gives_way_to_nobody() -> None:
    async def main() -> None:
        async with standing(GuardLimits(connections=8, source_share=0.5)) as stand:
            crowd = [stand.connect(f"192.0.2.{n % 4}") for n in range(8)]
            await asyncio.sleep(IDLE_FOR_LONG_S - 0.1)
            tape, _ = stand.connect("192.0.2.9")
            assert (status(tape), reason(tape)) == (429, "connections")
            await asyncio.sleep(0.2)
            assert not stand.connect("192.0.2.9")[0].closed
            assert sum(one.aborted for one, _ in crowd) == 1

    run(main())


def test_too_many_connections_at_once_are_dropped_without_a_word() -> None:
    async def main() -> None:
        async with standing(GuardLimits(connections=2)) as stand:
            tapes = [stand.connect()[0] for _ in range(2 + MAX_REFUSED + 50)]
            told = [tape for tape in tapes if b" 429 " in tape.written]
            assert len(told) == MAX_REFUSED
            assert sum(tape.aborted for tape in tapes) == 50

    run(main())


def test_a_unix_socket_and_a_proxy_have_all_connections() -> None:
    async def main() -> None:
        async with standing(GuardLimits(connections=8, source_share=0.25)) as stand:
            without = []
            for _ in range(8):
                tape, connection = Tape(), Connection(stand.shared)
                connection.connection_made(tape)
                without.append(tape)
            assert not any(tape.closed for tape in without)
        async with standing(GuardLimits(connections=8, source_share=1.0)) as stand:
            assert not any(stand.connect()[0].closed for _ in range(8))

    run(main())


# What RFC 9112 asks for beside the cases of the corpus


def test_the_authority_of_an_absolute_target_takes_the_place_of_host() -> None:
    async def main() -> None:
        seen: list[tuple[str, bytes | None]] = []

        async def note(exchange: Exchange) -> None:
            seen.append((exchange.path, exchange.header(b"host")))
            await exchange.reply(200, b"")

        async with serving({("GET", "/"): note, ("GET", "/note"): note}) as process:
            for target in ("http://one.example:8000", "http://one.example:8000/note?a=http://b/", "/note"):
                request = f"GET {target} HTTP/1.1\r\nhost: two.example\r\nconnection: close\r\n\r\n"
                await send(process.bound_port, request.encode())
        one = b"one.example:8000"
        assert seen == [("/", one), ("/note", one), ("/note", b"two.example")]

    run(main())


def test_a_transfer_coding_that_is_not_known_is_told_as_such() -> None:
    async def main() -> None:
        async with serving({}) as process:
            head = post_text("/", b"").replace(b"content-length: 0", b"transfer-encoding: gzip, chunked")
            answered, _, body = await ask(process.bound_port, head)
            assert (answered, json.loads(body)["error"]["code"]) == (501, "unsupported_transfer_encoding")

    run(main())
