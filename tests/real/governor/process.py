"""A governor as a process of its own: what only a process can be asked, it is asked here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

from tests.governor.stand import Line

ROOT = Path(__file__).parents[3]


class Child:
    """Where it listens, and how it leaves."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics_port: int) -> None:
        self.process = process
        self.port = port
        self.metrics_port = metrics_port
        self.lines: list[Line] = []

    async def connect(self) -> Line:
        self.lines.append(Line(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.lines[-1]

    async def scraped(self) -> dict[str, float]:
        return await asyncio.to_thread(self._scraped)

    def _scraped(self) -> dict[str, float]:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30).read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#" and "{" not in line)
        return {name: float(value) for name, value in pairs}

    async def until(self, **wanted: float) -> None:
        """Wait until /metrics says so."""
        async with asyncio.timeout(60):
            while (await self.scraped()).items() & wanted.items() != wanted.items():
                await asyncio.sleep(0.02)

    async def left(self) -> int:
        async with asyncio.timeout(60):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def governor_process(*, descriptors: int | None = None, **env: str) -> AsyncIterator[Child]:
    """Started with the stub for a backend; killed with the block if it has not left."""
    settings = {"GOVERNOR_BACKEND": "stub", "GOVERNOR_PORT": "0", "METRICS_PORT": "0", "GOVERNOR_MAX_INFLIGHT": "1"}

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.governor", cwd=ROOT, stdout=asyncio.subprocess.PIPE, preexec_fn=limit,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings, **env},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            deferred = json.loads(await process.stdout.readline())
        child = Child(process, deferred["port"], deferred["metrics_port"])
        yield child
        for line in child.lines:
            line.writer.transport.abort()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # the pipe's end, too
