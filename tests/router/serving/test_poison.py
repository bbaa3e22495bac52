"""A request that kills the process that works on it: two are enough, however the connection to them was come by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from services.contracts.generate import Done, Token, WorkerStatus
from tests.router.rig import TIMINGS, USAGE, error_of, standing
from tests.virtual import run

POISON = "the one that kills"
DIED = msgspec.json.encode({"error": {"message": "killed", "type": "server_error", "code": "engine_died"}})
FIRST_WORD = msgspec.json.encode(Token("dying")) + b"\n"


@dataclass
class Mortal:
    """A worker that is one process: it answers, keeps its connections, and is gone at once when it is asked POISON."""

    name: str
    engine_of_its_own: bool = False  # then only its engine dies, and it says so
    asked: int = 0
    deaths: int = 0
    alive: bool = True
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        yield self.server.sockets[0].getsockname()[1]
        self.die()

    def die(self) -> None:
        self.alive = False
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while self.alive:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length" in head else 0
                self.answer(head, await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        name = next((line + b"\r\n" for line in head.split(b"\r\n") if line.startswith(b"x-request-id")), b"")
        if head.startswith(b"get"):
            said = msgspec.json.encode(WorkerStatus(self.name, "mortal", ["fake"], 4, 0, 0, 0, False, 1.0))
        else:
            self.asked += 1
            if POISON.encode() in body and self.engine_of_its_own:
                self.deaths += 1
                writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: %d\r\n\r\n%b" % (len(DIED), DIED))
                return
            if POISON.encode() in body:
                if b'"stream":false' not in body:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n"
                        % (name, len(FIRST_WORD), FIRST_WORD)
                    )
                asyncio.get_running_loop().call_later(0.02, self.die)
                return
            said = msgspec.json.encode(Done("stop", USAGE, TIMINGS, 1, "fine"))
        writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (name, len(said), said))


@pytest.mark.parametrize("used_before", [False, True], ids=["new connections", "reused connections"])
def test_a_request_that_kills_two_workers_gets_no_third(used_before: bool) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            mortals = [Mortal(f"w{number}") for number in range(4)]
            ports = [await stack.enter_async_context(mortal.running()) for mortal in mortals]
            workers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
            stand = await stack.enter_async_context(standing(workers=workers))
            if used_before:
                await asyncio.gather(*(stand.chat() for _ in range(16)))
                assert all(mortal.asked for mortal in mortals)
            killer = await stand.chat(messages=[{"role": "user", "content": POISON}])
            assert [mortal.alive for mortal in mortals].count(False) == 2
            assert (killer.status_code, error_of(killer)["code"]) == (422, "poison_request")
            assert (await stand.chat()).status_code == 200

    run(main)


def test_a_request_that_kills_two_engines_gets_no_third_though_their_workers_live() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            mortals = [Mortal(f"w{number}", engine_of_its_own=True) for number in range(4)]
            ports = [await stack.enter_async_context(mortal.running()) for mortal in mortals]
            workers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
            stand = await stack.enter_async_context(standing(workers=workers))
            killer = await stand.chat(messages=[{"role": "user", "content": POISON}])
            assert (killer.status_code, error_of(killer)["code"]) == (422, "poison_request")
            assert sum(mortal.deaths for mortal in mortals) == 2
            assert (await stand.chat()).status_code == 200

    run(main)


def test_a_worker_that_is_lost_in_the_middle_of_a_stream_gets_nothing_more() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            mortals = [Mortal(f"w{number}") for number in range(2)]
            ports = [await stack.enter_async_context(mortal.running()) for mortal in mortals]
            workers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
            stand = await stack.enter_async_context(standing(workers=workers, probe_interval_s=60))
            cut = await stand.chat(stream=True, messages=[{"role": "user", "content": POISON}])
            assert (cut.status_code, "dying" in cut.text, "event: error" in cut.text) == (200, True, True)
            for number in range(4):  # prompts that begin differently: none has a worker that it would rather have
                told = await stand.chat(messages=[{"role": "user", "content": f"{number}"}])
                assert told.status_code == 200
            assert not any(value for _, value in await stand.samples("weir_retries_total")), "it was tried again"

    run(main)
