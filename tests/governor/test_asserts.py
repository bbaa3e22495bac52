"""Every assertion of the governor sees its fault; one that fires in a callback closes its connection, and is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from services.governor.backends import StubBackend
from services.governor.protocol import Conversation
from services.governor.server import Patience, _Connection
from services.runtime.serve import FineClockLoop
from tests.governor.stand import Held, governor, until
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


@pytest.fixture(params=[asyncio.new_event_loop, FineClockLoop], ids=["asyncio", "uvloop"])
def make(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Both loops: the second is what a service runs on."""
    found: Callable[[], asyncio.AbstractEventLoop] = request.param
    return found


@pytest.mark.stack
@pytest.mark.parametrize("broken", BREAKS)
def test_one_that_fires_in_a_callback_of_the_loop_is_told_and_closes_the_connection(
    broken: str, make: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
        async with governor(StubBackend(0.0), patience=Patience(), idle_s=0.1) as stand:
            line = await stand.connect()
            await until(lambda: len(stand.server.connections) == 1)
            monkeypatch.setattr(*BREAKS[broken], fails)
            if broken == "the end of a client's sending":
                line.writer.write_eof()
            elif broken != "a look for idleness":
                await line.say(*upload(DATA))
            async with asyncio.timeout(5.0):
                await ended(line.reader)
            await until(lambda: not stand.server.connections)
            monkeypatch.undo()
            assert stand.gate.held_bytes == 0, "what it held is given back"

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main())
    assert [str(error) for error in caught] == ["-1 of 3"]


async def ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        await reader.read()


@pytest.mark.stack
def test_a_job_whose_end_could_not_be_told_leaves_nobody_waiting(
    make: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.say(*upload(DATA))
            await until(lambda: backend.running == 1)
            monkeypatch.setattr(Conversation, "ended", fails)
            backend.let_go.release()
            async with asyncio.timeout(5.0):
                await ended(line.reader)
            monkeypatch.undo()
            await until(lambda: not stand.server.connections)
            assert not stand.server.tasks
            assert not stand.gate.saturated, "its slot is free"
            log = stand.process.log
            log.close()
            assert "a job's end could not be told" in log._stream.getvalue().decode()  # type: ignore[attr-defined]

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(main())
