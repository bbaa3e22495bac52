"""An evil worker that is told to reform plays no trick any more, and says how many it has played."""

from __future__ import annotations

import asyncio
import json

from loadtests.faults.evil.talk import Talk
from loadtests.faults.evil.worker import EvilWorker, running
from tests.virtual import run


async def silent(talk: Talk) -> None:
    """The trick: nothing but a word that is no answer."""
    await talk.body(b"trick\n")


async def exchange(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    found = b""
    while not found.endswith((b"\n", b"}", b"0\r\n\r\n")) or (found.endswith(b"\r\n\r\n") and b"chunked" not in found):
        found += await reader.read(65_536)
    writer.close()
    return found


def test_a_reformed_worker_answers_right() -> None:
    async def main() -> None:
        asked = json.dumps({"messages": [], "stream": False, "max_tokens": 8}).encode()
        async with running(EvilWorker("weir", lambda talk: silent, model="m"), 0) as worker:
            assert (await exchange(worker.port, "POST", "/generate", asked)).endswith(b"trick\n")
            told = await exchange(worker.port, "GET", "/reform")
            assert json.loads(told.partition(b"\r\n\r\n")[2]) == {"asked": 1, "tricks": 1}
            assert b'"event": "done"' in await exchange(worker.port, "POST", "/generate", asked)
            assert (worker.count, worker.played) == (2, 1)

    run(main)
