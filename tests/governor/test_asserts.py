"""Every assertion of the governor sees its fault; one that fires in a callback closes its connection, and is logged."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from loadtests.cluster.loop import SimLoop
from services.governor.backends import Backend, StubBackend
from services.governor.gate import Bounds, Gate, Place
from services.governor.metrics import GovernorMetrics
from services.governor.protocol import Conversation, Work
from services.governor.server import Patience, Server, _Connection
from services.runtime.log import Log
from services.runtime.telemetry import new_registry
from tests.governor.stand import Held
from tests.governor.talk import Rig, ping, upload

DATA = b"hello world!"


def held_less_than_nothing() -> None:
    Rig().gate.hold(-1, 5)


def let_go_twice() -> None:
    gate = Rig().gate
    gate.hold(5, 0)
    for _ in range(2):
        gate.let_go(5)


def more_let_go_than_this_connection_held() -> None:
    rig = Rig()
    rig.gate.hold(50, 0)
    peer = rig.connect()
    peer.say(ping())
    peer.conversation._let_go(20)


def bytes_that_nothing_accounts_for() -> None:
    peer = Rig().connect()
    peer.say(*upload(DATA)[:1])
    peer.conversation._hold(3)
    peer.conversation.lost()


def a_job_beside_a_job() -> None:
    rig = Rig(cap=2)
    peer = rig.connect()
    peer.say(*upload(DATA))
    conversation, account = peer.conversation, peer.conversation._account_token
    was, conversation._running = conversation._running, None

    def still_runs(token_bytes: int) -> bool:
        conversation._running = was
        return account(token_bytes)

    conversation._account_token = still_runs  # type: ignore[method-assign]
    peer.say(upload(DATA)[-1])


def back_twice() -> None:
    rig = Rig(cap=1)
    first, second = rig.connect(), rig.connect()
    first.say(*upload(DATA))
    second.say(upload(DATA)[0])  # told to come back
    rig.gate.waiting = 0
    second.say(upload(DATA)[0])


FAULTS: list[tuple[Callable[[], None], str]] = [
    (held_less_than_nothing, "-1 bytes are let go, not held: <Gate"),
    (let_go_twice, "5 bytes were let go twice: <Gate .*, -5 bytes held"),
    (more_let_go_than_this_connection_held, "-14 bytes are held here, in <Gate"),
    (bytes_that_nothing_accounts_for, r"\d+ bytes were held, of which \d+ are known: <Gate"),
    (a_job_beside_a_job, "'J_a' would run beside Said"),
    (back_twice, "it came back twice: <Gate .* -1 told to come back"),
]


@pytest.mark.parametrize(("plant", "told"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], None], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        plant()


def fails(*_: Any) -> None:
    raise AssertionError("-1 of 3")


BREAKS = {
    "a read": (Conversation, "receive"),
    "the end of a client's sending": (Conversation, "half_closed"),
    "a look for idleness": (Conversation, "idled"),
    "a second job": (_Connection, "_begin"),
}


@asynccontextmanager
async def governed(backend: Backend) -> AsyncIterator[tuple[Server, Any, io.BytesIO]]:
    """A governor in the loop's own network: its server, a connection's reader and writer, and its log."""
    stream = io.BytesIO()
    log = Log("test", stream=stream)
    gate = Gate(cap=1, bounds=Bounds(idle_s=0.1), random=lambda: 0.0)
    server = Server(gate, backend, patience=Patience(), metrics=GovernorMetrics(new_registry()), log=log)
    listener = await asyncio.get_running_loop().create_server(lambda: _Connection(server), "127.0.0.1", 7777)
    reader, writer = await asyncio.open_connection("127.0.0.1", 7777)
    try:
        yield server, (reader, writer), stream
    finally:
        writer.close()
        listener.close()
        log.close()


async def ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        async with asyncio.timeout(5.0):
            await reader.read()


@pytest.mark.parametrize("broken", BREAKS)
def test_one_that_fires_in_a_callback_of_the_loop_is_told_and_closes_the_connection(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
        async with governed(StubBackend(0.0)) as (server, (reader, writer), _):
            await asyncio.sleep(0.01)
            monkeypatch.setattr(*BREAKS[broken], fails)
            if broken == "the end of a client's sending":
                writer.write_eof()
            elif broken != "a look for idleness":
                writer.write(b"".join(upload(DATA)))
            await ended(reader)
            await asyncio.sleep(0.01)
            monkeypatch.undo()
            assert (len(server.connections), server.gate.held_bytes) == (0, 0), "what it held is given back"

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(main())
    assert [str(error) for error in caught] == ["-1 of 3"]


def test_a_second_job_on_one_connection_is_a_fault() -> None:
    async def main() -> None:
        backend = Held()
        async with governed(backend) as (server, (_, writer), _):
            writer.write(b"".join(upload(DATA)))
            await asyncio.sleep(0.05)
            (connection,) = server.connections
            with pytest.raises(AssertionError, match=r"a second job on one connection: 'J_b', <Gate <InflightCap 1/1"):
                connection._begin(Work("J_b", b"", "", None, Place(server.gate)))
            backend.let_go.release()

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(main())


def test_a_job_whose_end_could_not_be_told_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> io.BytesIO:
        backend = Held()
        async with governed(backend) as (server, (reader, writer), stream):
            writer.write(b"".join(upload(DATA)))
            await asyncio.sleep(0.05)
            assert backend.running == 1
            monkeypatch.setattr(Conversation, "ended", fails)
            backend.let_go.release()
            await ended(reader)
            monkeypatch.undo()
            await asyncio.sleep(0.01)
            assert (len(server.connections), len(server.tasks)) == (0, 0)
            assert not server.gate.saturated, "its slot is free"
        return stream

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert b"a job's end could not be told" in runner.run(main()).getvalue()
