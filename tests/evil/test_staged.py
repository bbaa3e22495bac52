"""The staged worker brings a request as far as its question says, and no further."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from loadtests.faults.evil.staged import STAGES, StagedWorker, Stages
from loadtests.faults.evil.worker import running
from tests.virtual import run

BEFORE_THE_FIRST_BYTE = ("queued", "dispatched", "retry")


async def said(port: int, stage: str, *, stream: bool, id: str = "a", path: str = "/generate") -> bytes:
    """Everything that comes within a virtual second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = {"query": stage} if path == "/retrieve" else {"messages": [{"content": f"{stage}: kaboom"}]}
    body = json.dumps({**asked, "stream": stream, "max_tokens": 8}).encode()
    head = f"POST {path} HTTP/1.1\r\nx-request-id: {id}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    found = b""
    try:
        async with asyncio.timeout(1):
            while piece := await reader.read(65_536):
                found += piece
    except TimeoutError:
        pass
    writer.close()
    return found


def staged(main: Callable[[int, Stages], Awaitable[None]]) -> None:
    """Run this before a staged worker."""

    async def inside() -> None:
        stages = Stages()
        async with running(StagedWorker(stages, "m"), 0) as worker:
            await main(worker.port, stages)

    run(inside)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("stage", STAGES[STAGES.index("queued") :])
def test_a_request_comes_to_its_stage_and_no_further(stage: str, stream: bool) -> None:
    async def main(port: int, stages: Stages) -> None:
        path = "/retrieve" if stage == "retrieval" else "/generate"
        if stage == "retry":
            assert b" 500 " in await said(port, stage, stream=stream)
            assert stages.there == 0
        found = await said(port, stage, stream=stream, path=path)
        whole = found.endswith(b"0\r\n\r\n")
        assert whole == (stage in ("last token", "after the end"))
        assert bool(found) == (stage not in (*BEFORE_THE_FIRST_BYTE, "retrieval"))
        assert stages.there == (stage != "after the end")
        if stream:
            tokens = {"first token": 1, "mid-stream": 5, "last token": 8, "after the end": 8}
            assert found.count(b'"event": "token"') == tokens.get(stage, 0)

    staged(main)


def test_it_says_how_many_have_come_and_passes_the_routers_probe() -> None:
    async def main(port: int, stages: Stages) -> None:
        await said(port, "dispatched", stream=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path, told in (("/there", 1), ("/status", None)):
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            body = json.loads(await reader.readexactly(int(head.rpartition(b"content-length: ")[2])))
            assert body == told or body["models"] == ["m"]
        writer.close()

    staged(main)
