"""A process on inherited sockets: it accepts once it has started, covers for others, and hands over without a loss."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from services.router.processes import child
from services.router.processes.child import Place, SharedPort, inherit
from services.router.processes.link import COVER, HAND_OVER, LAST, LEAVING, OWN, READY
from services.router.processes.parent import public_sockets
from services.runtime.http import Exchange, become_task
from services.runtime.serve import Process, listening_socket, running
from services.runtime.starting import PortTaken
from tests.runtime.rig import ask, build, until
from tests.virtual import run

pytestmark = pytest.mark.sockets
GET = b"GET /hello HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"
KEPT = b"GET /hello HTTP/1.1\r\nhost: test\r\n\r\n"


@dataclass
class Member:
    """One process as its parent sees it."""

    process: Process
    link: socket.socket
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begin: asyncio.Event = field(default_factory=asyncio.Event)
    starts: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0
    task: asyncio.Task[None] | None = None

    def tell(self, word: bytes) -> None:
        self.link.send(word)

    async def hears(self, word: bytes) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            while (received := await loop.sock_recv(self.link, 1)) != word:
                assert received, "it has ended"

    async def end(self) -> None:
        """Until its process has ended, as the parent does it."""
        await self.hears(LAST)
        self.tell(LAST)
        assert self.task is not None
        await self.task


@dataclass
class Several:
    port: int
    members: list[Member]


def member_of(index: int, sockets: list[socket.socket], opening: AsyncExitStack) -> Member:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    opening.callback(ours.close)
    metrics = listening_socket("127.0.0.1", 0, "METRICS_PORT")
    place = Place(
        index=index, parent=0, public=tuple(os.dup(sock.fileno()) for sock in sockets), metrics=metrics.detach(),
        link=theirs.detach(),
    )  # fmt: skip

    async def hello(exchange: Exchange) -> None:
        member.served += 1
        await become_task()
        await member.gate.wait()
        await exchange.reply(200, b"%d" % index)

    async def start() -> None:
        member.starts.set()
        await member.begin.wait()

    process = inherit(build({("GET", "/hello"): hello}, start=start, drain_timeout_s=5.0), place)
    opening.callback(process.log.close)
    member = Member(process, ours)
    member.gate.set()

    async def live() -> None:
        process.leave = member.stop.set
        async with running(process, member.stop, bind=place.bind):
            await member.stop.wait()

    member.task = asyncio.get_running_loop().create_task(live())
    return member


@asynccontextmanager
async def several(count: int = 2, *, started: bool = True) -> AsyncIterator[Several]:
    async with AsyncExitStack() as opening:
        sockets = public_sockets("127.0.0.1", 0, count)
        for sock in sockets:
            opening.callback(sock.close)
        made = Several(sockets[0].getsockname()[1], [member_of(index, sockets, opening) for index in range(count)])
        for member in made.members if started else ():
            member.begin.set()
            await member.hears(READY)
        try:
            yield made
        finally:
            for member in made.members:
                member.begin.set()
                member.gate.set()
                member.stop.set()
                with contextlib.suppress(BrokenPipeError):  # it has ended
                    member.tell(LAST)
            await asyncio.gather(*(member.task for member in made.members if member.task is not None))


async def asked(port: int, times: int) -> list[bytes]:
    """The number of the process that answered each of so many new connections."""
    found = []
    async with asyncio.timeout(20):
        for _ in range(times):
            status, _, body = await ask(port, GET)
            assert status == 200
            found.append(body)
    return found


def run_here(main: object) -> None:
    run(main, asyncio.new_event_loop)  # type: ignore[arg-type]


def test_nothing_is_accepted_before_the_start_is_complete() -> None:
    async def main() -> None:
        async with several(1, started=False) as made:
            await made.members[0].starts.wait()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", made.port)
            made.members[0].begin.set()
            await made.members[0].hears(READY)
            assert await asked(made.port, 1) == [b"0"]

    run_here(main)


def test_two_processes_answer_on_one_port() -> None:
    async def main() -> None:
        async with several() as made:
            async with asyncio.timeout(20):
                while {b"0", b"1"} - set(await asked(made.port, 16)):
                    pass

    run_here(main)


def test_one_covers_for_another_and_stops_when_it_is_told() -> None:
    async def main() -> None:
        async with several() as made:
            first, second = made.members
            second.stop.set()
            await second.hears(LEAVING)
            first.tell(COVER)
            await second.end()
            assert await asked(made.port, 50) == [b"0"] * 50
            port = first.process.listener
            assert isinstance(port, SharedPort)
            assert port._covering
            first.tell(OWN)
            await until(lambda: not port._covering)

    run_here(main)


def test_who_hands_over_answers_what_it_has_and_nobody_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "HAND_OVER_S", 0.0)

    async def main() -> None:
        async with several() as made:
            first, second = made.members
            first.gate.clear()
            second.gate.clear()
            held = [asyncio.create_task(ask(made.port, KEPT)) for _ in range(16)]
            await until(lambda: first.served + second.served == 16)
            assert first.served > 0
            first.tell(HAND_OVER)
            await first.hears(LEAVING)
            second.tell(COVER)
            second.gate.set()
            fresh = asyncio.create_task(asked(made.port, 60))
            await asyncio.sleep(0.3)
            first.gate.set()
            await first.end()
            await fresh
            assert await asked(made.port, 20) == [b"1"] * 20
            second.stop.set()
            await second.end()
            answers = await asyncio.gather(*held)
            of_first = [head for status, head, body in answers if body == b"0"]
            assert len(of_first) > 0
            assert all(b"connection: close" in head for head in of_first)
            assert [status for status, _, _ in answers] == [200] * 16

    run_here(main)


def test_a_port_that_another_program_listens_on_is_taken() -> None:
    """SO_REUSEPORT alone would let a second Weir of the same user take a part of the connections."""
    held = public_sockets("127.0.0.1", 0, 1)
    held[0].listen()
    with pytest.raises(PortTaken, match="ROUTER_PORT"):
        public_sockets("127.0.0.1", held[0].getsockname()[1], 2)
    held[0].close()
