"""A governor on the loop that runs, and clients that speak to it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from services.governor.app import http_side
from services.governor.backends import Backend
from services.governor.gate import Gate, GovernorLimits
from services.governor.job import Ended, Result, Work
from services.governor.metrics import GovernorMetrics
from services.governor.server import GovernorServer, ServerLimits
from services.runtime.drain import Drain
from services.runtime.log import Log
from services.runtime.serve import Process, running
from services.runtime.telemetry import new_registry
from tests.virtual import bind


class Held(Backend):
    """Jobs that end when the test says so."""

    def __init__(self) -> None:
        self.running = 0
        self.max_running = 0
        self.started = 0
        self.cancelled = 0
        self.release = asyncio.Semaphore(0)
        self.result = Result(Ended.DONE)

    async def run(self, work: Work) -> Result:
        self.started += 1
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await self.release.acquire()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return self.result

    async def close(self) -> None: ...


@dataclass
class Stand:
    """A running governor."""

    process: Process
    server: GovernorServer
    gate: Gate
    lines: list[Line] = field(default_factory=list)

    async def connect(self, **options: Any) -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.process.bound_port, limit=2**24, **options)
        self.lines.append(Line(reader, writer))
        return self.lines[-1]


class Line:
    """A client's connection: lines out, replies in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))
        await self.writer.drain()

    async def hear(self) -> dict[str, Any] | None:
        """The next reply; None at the end."""
        line = await self.reader.readline()
        heard: dict[str, Any] | None = json.loads(line) if line else None
        return heard

    async def ask(self, line: bytes) -> dict[str, Any]:
        await self.send(line)
        heard = await self.hear()
        assert heard is not None
        return heard

    async def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def governor(
    backend: Backend, *, cap: int = 1, limits: ServerLimits | None = None, grace_s: float = 10.0, **bounds: Any
) -> AsyncIterator[Stand]:
    log, registry = Log("test", stream=io.BytesIO()), new_registry()
    metrics = GovernorMetrics(registry)
    gate = Gate(cap=cap, bounds=GovernorLimits(**bounds), random=lambda: 0.0)
    server = GovernorServer(gate, backend, limits=limits or ServerLimits(), metrics=metrics, log=log)
    metrics.watch(gate, lambda: len(server.connections))
    drain = Drain()
    process = Process(
        name="governor", listener=server, metrics=http_side(registry, log, drain), log=log, drain=drain,
        host="127.0.0.1", port=0, metrics_host="127.0.0.1", metrics_port=0, drain_timeout_s=grace_s,
    )  # fmt: skip
    try:
        stand = Stand(process, server, gate)
        async with running(process, bind=bind):
            yield stand
    finally:
        await asyncio.sleep(0.01)  # what was said last arrives
        for line in stand.lines:
            line.writer.transport.abort()
        await asyncio.sleep(0)  # they hear of it
        log.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition rather than for a time."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def scraped(stand: Stand) -> dict[str, float]:
    """Every sample without labels on the metrics listener."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.process.bound_metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).split(b"\r\n\r\n", 1)[1].decode()
    writer.close()
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.name: sample.value for sample in found if not sample.labels}
