"""A service with handlers made for the test, where its clients are, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from services.runtime.api import native, new_api
from services.runtime.drain import Drain
from services.runtime.guard import GuardLimits
from services.runtime.health import Readiness, add_health
from services.runtime.http import Handler, HeadCheck
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process
from services.runtime.service import Service
from services.runtime.telemetry import metrics_app, new_registry
from tests.virtual import running_here


def api_of(routes: Mapping[tuple[str, str], Handler], drain: Drain | None = None) -> FastAPI:
    """An application whose handlers answer their exchanges by themselves, with the routes for health."""
    api = new_api("Test", "For a test.")
    add_health(api, "test", lambda: Readiness(True), drain or Drain())
    for (method, path), handler in routes.items():
        api.add_api_route(path, native(handler), methods=[method], response_model=None)
    return api


def build(
    routes: Mapping[tuple[str, str], Handler],
    *,
    stream: io.BytesIO | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    eager: Sequence[str] = (),
    limits: GuardLimits | None = None,
    idle_timeout_s: float = 75.0,
    checks: tuple[HeadCheck, ...] = (),
    **process: Any,
) -> Process:
    log, drain = Log("test", stream=stream or io.BytesIO()), Drain()
    hot = {route: handler for route, handler in routes.items() if route[1] in eager}
    service = Service("test", api_of(routes, drain), log=log, drain=drain, headers=headers, hot=hot)
    return Process(
        name="test",
        listener=HttpListener(service, limits or GuardLimits(), idle_timeout_s, checks=checks),
        metrics=metrics_app(new_registry(), log),
        log=log,
        drain=drain,
        host="127.0.0.1",
        port=0,
        metrics_host="127.0.0.1",
        metrics_port=0,
        **process,
    )


@asynccontextmanager
async def serving(routes: Mapping[tuple[str, str], Handler], **process: Any) -> AsyncIterator[Process]:
    built = build(routes, **process)
    try:
        async with running_here(built):
            yield built
    finally:
        built.log.close()


def tight(**limits: Any) -> GuardLimits:
    """Limits small enough to be met in a test."""
    return GuardLimits(**limits)


class Tape(asyncio.Transport):
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:  # type: ignore[override]  # the edge writes bytes
        assert not self.closed
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is read at once, unless a test says otherwise."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


async def send(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes, then read until the server closes; fails rather than hangs."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    if half_close:
        writer.write_eof()
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


async def ask(port: int, data: bytes) -> tuple[int, bytes, bytes]:
    """One request on a connection of its own that asks to be closed: status, head, body."""
    answer = await send(port, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head, body


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "connection: close", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def until(condition: Any, what: str = "the condition") -> None:
    """Wait for a condition, never for a duration."""
    try:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} never came true") from None
