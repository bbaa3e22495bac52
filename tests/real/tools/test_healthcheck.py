"""The images' health check, as the images run it, against services that are ready, and others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.governor.stand import Held, governor, until
from tests.governor.talk import upload

CHECK = Path(__file__).parents[3] / "services" / "healthcheck.py"


async def check(port: int, *words: str) -> int:
    command = [sys.executable, "-IS", str(CHECK), str(port), *words]
    child = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    return await asyncio.wait_for(child.wait(), 60)


def test_a_governor_is_ready_while_it_answers_even_with_every_slot_taken() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.send(*upload(b"x"))
            await until(lambda: backend.running == 1)
            port = stand.process.bound_metrics_port
            assert await check(port) == 0
            assert await check(port, "/nothing") != 0
            assert await check(stand.process.bound_port) != 0, "its own port speaks no HTTP"
            backend.release.release()
        assert await check(port) != 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head", "status"), [(b"HTTP/1.1 200 OK\r\n\r\n", 0), (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", 1), (b"", 1)]
)
def test_a_service_is_ready_when_it_says_so(head: bytes, status: int) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readline())
            writer.write(head)
            writer.close()

        asked: list[bytes] = []
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            assert await check(server.sockets[0].getsockname()[1]) == status
        assert asked == [b"GET /health/ready HTTP/1.1\r\n"]

    asyncio.run(main())
