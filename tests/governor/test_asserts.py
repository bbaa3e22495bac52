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
from services.governor.gate import Gate, GovernorLimits, Slot, Use
from services.governor.job import Work
from services.governor.metrics import GovernorMetrics
from services.governor.protocol import GovernorSession
from services.governor.server import GovernorServer, ServerLimits, _Connection
from services.runtime.log import Log
from services.runtime.telemetry import new_registry
from tests.governor.stand import Held
from tests.governor.talk import Rig, ping, upload

DATA = b"hello world!"


def held_less_than_nothing() -> None:
    Rig().gate.reserve(-1, 5)


def released_twice() -> None:
    gate = Rig().gate
    gate.reserve(5, 0)
    for _ in range(2):
        gate.release(5)


def more_released_than_this_connection_held() -> None:
    rig = Rig()
    rig.gate.reserve(50, 0)
    peer = rig.connect()
    peer.send(ping())
    peer.session._memory.held_bytes = 0
    peer.session._memory.release(Use.NAME)


def bytes_that_nothing_accounts_for() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.send(*upload(DATA)[:1])
    peer.session._memory.held_bytes += 3
    rig.gate.reserve(3, 0)
    peer.session.lost()


def a_job_beside_a_job() -> None:
    rig = Rig(cap=2)
    peer = rig.connect()
    peer.send(*upload(DATA))
    session, try_acquire = peer.session, rig.gate.try_acquire
    was, session._running = session._running, None

    def still_runs() -> Slot | None:
        session._running = was
        return try_acquire()

    rig.gate.try_acquire = still_runs  # type: ignore[method-assign]
    peer.send(upload(DATA)[-1])


def resumed_twice() -> None:
    rig = Rig(cap=1)
    first, second = rig.connect(), rig.connect()
    first.send(*upload(DATA))
    second.send(upload(DATA)[0])  # deferred
    rig.gate.waiting = 0
    second.send(upload(DATA)[0])


FAULTS: list[tuple[Callable[[], None], str]] = [
    (held_less_than_nothing, "-1 bytes are released, not reserved: <Gate"),
    (released_twice, "5 bytes were released twice: <Gate .*, -5 bytes held"),
    (more_released_than_this_connection_held, "-6 bytes are held here, in <Gate"),
    (bytes_that_nothing_accounts_for, r"\d+ bytes were held, of which \d+ are known: <Gate"),
    (a_job_beside_a_job, "'J_a' would run beside FrameEnvelope"),
    (resumed_twice, "a job was resumed twice: <Gate .* -1 jobs deferred"),
]


@pytest.mark.parametrize(("plant", "message"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        plant()


def fails(*_: Any) -> None:
    raise AssertionError("-1 of 3")


BREAKS = {
    "a read": (GovernorSession, "receive"),
    "the end of a client's sending": (GovernorSession, "half_closed"),
    "a look for idleness": (GovernorSession, "idled"),
    "a second job": (_Connection, "_begin"),
}


@asynccontextmanager
async def governed(backend: Backend) -> AsyncIterator[tuple[GovernorServer, Any, io.BytesIO]]:
    """A governor in the loop's own network: its server, a connection's reader and writer, and its log."""
    stream = io.BytesIO()
    log = Log("test", stream=stream)
    gate = Gate(cap=1, bounds=GovernorLimits(idle_s=0.1), random=lambda: 0.0)
    server = GovernorServer(gate, backend, limits=ServerLimits(), metrics=GovernorMetrics(new_registry()), log=log)
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
                connection._begin(Work("J_b", b"", "", None, Slot(server.gate)))
            backend.release.release()

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(main())


def test_a_job_whose_end_could_not_be_told_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> io.BytesIO:
        backend = Held()
        async with governed(backend) as (server, (reader, writer), stream):
            writer.write(b"".join(upload(DATA)))
            await asyncio.sleep(0.05)
            assert backend.running == 1
            monkeypatch.setattr(GovernorSession, "ended", fails)
            backend.release.release()
            await ended(reader)
            monkeypatch.undo()
            await asyncio.sleep(0.01)
            assert (len(server.connections), len(server.tasks)) == (0, 0)
            assert not server.gate.saturated, "its slot is free"
        return stream

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert b"the result of a job could not be sent" in runner.run(main()).getvalue()
