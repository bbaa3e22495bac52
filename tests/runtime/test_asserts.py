"""Every assertion of the runtime sees its fault, and what fires ends its request or its connection, and is logged."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from loadtests.cluster.loop import SimLoop
from services.runtime.budget import Budget
from services.runtime.connection import Connection
from services.runtime.errors import place_of
from services.runtime.guard import GuardLimits, Inbound
from services.runtime.http import Exchange
from services.runtime.keepalive import Pool
from services.runtime.serve import FineClockLoop
from services.runtime.shared import Shared
from tests.runtime.corpus import get
from tests.runtime.rig import Tape, build
from tests.runtime.wires import turns, wired
from tests.virtual import run

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Deaf:
    """A wire that goes nowhere."""

    write_paused = False
    memo: object | None = None
    date_line = b""
    scheme = "http"

    def send(self, data: bytes) -> None: ...
    def answered(self, exchange: Exchange) -> None: ...
    def ended(self, exchange: Exchange) -> None: ...
    async def until_read(self) -> None: ...


async def given_back_twice() -> None:
    budget = Budget(10)
    budget.reserve(None, 4)
    for _ in range(2):
        budget.release(None, 4)


async def given_back_by_another() -> None:
    budget = Budget(10)
    budget.reserve(b"one", 4)
    budget.release(b"two", 4)


async def two_ends() -> None:
    exchange = Exchange(Deaf(), "GET", "/", [])
    exchange.reply_now(200, b"")
    exchange._end()


async def two_at_once() -> None:
    built = build({})
    connection = Connection(Shared(built.listener.app, GuardLimits(), idle_timeout_s=60.0))
    connection.connection_made(Tape())
    exchange = Exchange(connection, "GET", "/", [])
    connection._answering = exchange
    connection._start(exchange)


async def replied(pool: Pool, wires: list[Any]) -> Any:
    """A reply that is read to its end, and not closed."""
    asking = asyncio.create_task(pool.request(b"GET", b"/"))
    await turns()
    wires[-1].feed(ANSWER)
    return await asking


async def lent_while_in_use() -> None:
    async with wired() as (pool, wires):
        reply = await replied(pool, wires)
        pool._idle.append(reply._connection)
        reply._connection.parked_at = asyncio.get_running_loop().time()
        await pool.request(b"GET", b"/")


async def connection_given_back_twice() -> None:
    async with wired() as (pool, wires):
        reply, _ = await replied(pool, wires), await replied(pool, wires)
        connection = reply._connection
        reply.close()
        pool.release(connection)


async def more_connections_back_than_out() -> None:
    async with wired() as (pool, wires):
        reply = await replied(pool, wires)
        pool.in_use = 0
        reply.close()


async def lingered_already() -> None:
    async with wired() as (pool, wires):
        asking = asyncio.create_task(pool.request(b"GET", b"/"))
        await turns()
        wires[-1].feed(ANSWER[:-2])
        (await asking).linger()
        pool.lingering = 0
        (connection,) = pool._working
        connection._stop_lingering(connection.lingering)  # type: ignore[arg-type]  # it has its timer


FAULTS: list[tuple[Callable[[], Coroutine[Any, Any, None]], str]] = [
    (given_back_twice, "4 were given back twice: <Budget -4 of 10"),
    (given_back_by_another, "one source gave back 4 that another took"),
    (two_ends, "<Exchange  GET /, complete, status 200> has a second end"),
    (two_at_once, "would be answered out of turn: <Connection open"),
    (lent_while_in_use, "a connection that is in use was lent again: <Pool"),
    (connection_given_back_twice, "a connection was given back twice: <Pool"),
    (more_connections_back_than_out, "more was given back than taken: <Pool .*: -1 in use"),
    (lingered_already, "it has lingered already: <Pool"),
]


@pytest.mark.parametrize(("plant", "told"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], Coroutine[Any, Any, None]], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        run(plant())


# What becomes of one that fires


async def faulty(exchange: Exchange) -> None:
    taken = Budget(3)
    taken.release(None, 7)


async def answers(exchange: Exchange) -> None:
    await exchange.reply(200, b"")


@asynccontextmanager
async def listening(limits: GuardLimits, port: int = 8000, **process: Any) -> AsyncIterator[Any]:
    """A service in the loop's own network; its connections rest for 0.05 s. How to connect to it."""
    built = build({("GET", "/"): faulty, ("GET", "/well"): answers}, **process)
    shared = Shared(built.listener.app, limits, idle_timeout_s=0.05)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(shared), "127.0.0.1", port)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*server.sockets[0].getsockname())

    try:
        yield connect
    finally:
        server.close()
        built.log.close()


def test_a_handler_that_meets_one_answers_500_and_the_log_has_its_place_and_its_values() -> None:
    stream = io.BytesIO()

    async def main() -> None:
        async with listening(GuardLimits(), stream=stream) as connect:
            reader, writer = await connect()
            writer.write(get(b"/"))
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
            assert head.startswith(b"HTTP/1.1 500 ")
            assert b"Budget" not in body, "the values are for the log alone"
            writer.write(get(b"/well"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 "), "and the connection goes on"
            writer.close()

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(main())
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines() if b"a handler failed" in line]
    assert line["traceback"].startswith("AssertionError in release (budget.py:")
    assert line["traceback"].endswith(": 7 were given back twice: <Budget -7 of 3, 0 sources>")


def test_what_a_library_asserts_is_told_without_its_words() -> None:
    library = compile("assert False, 'a prompt'", "/lib/library.py", "exec")
    with pytest.raises(AssertionError) as raised:
        exec(library)  # noqa: S102
    told = place_of(raised.value)
    assert told.startswith("AssertionError in <module> (library.py:1) < ")
    assert "a prompt" not in told


def test_one_that_fires_in_the_parser_is_no_fault_of_the_clients() -> None:
    class Broken(Inbound):
        def on_message_complete(self) -> None:
            raise AssertionError("2 requests of 1")

    inbound = Broken(GuardLimits(), Deaf())
    with pytest.raises(AssertionError, match="2 requests of 1"):
        inbound.take(get(b"/", b"connection: close"))


class Faulty(list[Any]):
    def append(self, _: Any) -> None:
        fails()


def test_one_that_fires_in_the_parser_is_no_fault_of_the_servers() -> None:
    async def main() -> None:
        async with wired() as (pool, wires):
            asking = asyncio.create_task(pool.request(b"GET", b"/"))
            await turns()
            wires[-1].protocol.headers = Faulty()
            with pytest.raises(AssertionError, match="-1 of 3"):
                wires[-1].feed(ANSWER)
            wires[-1].end(ConnectionResetError())
            asking.cancel()

    run(main())


def fails(*_: Any) -> None:
    raise AssertionError("-1 of 3")


BREAKS: dict[str, Callable[[type[Connection], pytest.MonkeyPatch], None]] = {
    "a read": lambda kind, patch: patch.setattr(kind, "data_received", fails),
    "the end of a client's sending": lambda kind, patch: patch.setattr(kind, "eof_received", fails),
    "a client too slow": lambda kind, patch: patch.setattr(kind, "_part_timed_out", fails),
    "a rest": lambda kind, patch: patch.setattr(kind, "_check_idle", fails),
    "a newcomer": lambda kind, patch: patch.setattr(Shared, "register", fails),
}


def play(
    broken: str, make: Callable[[], asyncio.AbstractEventLoop], patch: pytest.MonkeyPatch, port: int = 8000
) -> None:
    """Break a step of a connection: its client sees the end, and the loop is told why, once."""
    caught: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
        async with listening(GuardLimits(headers_s=0.05 if broken == "a client too slow" else 10.0), port) as connect:
            BREAKS[broken](Connection, patch)
            reader, writer = await connect()
            if broken in ("a read", "a rest"):
                writer.write(get(b"/well"))
            if broken == "the end of a client's sending":
                writer.write_eof()
            with suppress(ConnectionResetError):
                async with asyncio.timeout(5.0):
                    await reader.read()
            writer.close()
            patch.undo()

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main())
    assert [str(error) for error in caught] == ["-1 of 3"]


@pytest.mark.parametrize("broken", BREAKS)
def test_one_that_fires_in_a_callback_of_the_loop_is_told_and_closes_the_connection(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(broken, SimLoop, monkeypatch)


@pytest.mark.sockets
@pytest.mark.parametrize("make", [asyncio.new_event_loop, FineClockLoop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("broken", ["a read", "the end of a client's sending"])
def test_the_loops_themselves_close_a_connection_whose_read_fails(
    broken: str, make: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(broken, make, monkeypatch, port=0)
