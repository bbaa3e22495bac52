"""Leaving in two steps: for `drain_delay_s` the service is unready and serves everything; then it drains."""

from __future__ import annotations

import asyncio
import io
import json
import socket

import pytest

from services.runtime.connection import Connection
from services.runtime.drain import Drain
from services.runtime.guard import GuardLimits
from services.runtime.http import App, Exchange
from services.runtime.log import Log
from services.runtime.serve import HttpListener, running
from services.runtime.service import Service
from tests.runtime.rig import Tape, api_of, ask, build, until
from tests.virtual import bind, run

DELAY_S = 3600.0  # far more than a test takes: only the test itself ends it


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n".encode()


async def hello(exchange: Exchange) -> None:
    await exchange.reply(200, b"hello")


ROUTES = {("GET", "/hello"): hello}


def service(drain: Drain) -> Service:
    return Service("test", api_of(ROUTES, drain), log=Log("test", stream=io.BytesIO()), drain=drain)


def test_during_the_delay_the_service_says_that_it_leaves_and_serves_new_connections() -> None:
    async def main() -> None:
        process = build(ROUTES, drain_delay_s=DELAY_S)
        stop = asyncio.Event()

        async def serve() -> None:
            async with running(process, stop, bind=bind):
                await stop.wait()

        serving_it = asyncio.create_task(serve())
        await until(lambda: process.bound_port > 0 and not serving_it.done(), "the start")
        assert (await ask(process.bound_port, get("/health/ready")))[0] == 200
        stop.set()
        await until(lambda: process.drain.announced, "the announcement")
        status, _, body = await ask(process.bound_port, get("/health/ready"))
        assert (status, json.loads(body)["status"]) == (503, "draining")
        status, _, body = await ask(process.bound_port, get("/hello"))
        assert (status, body, process.drain.draining) == (200, b"hello", False)
        assert (await ask(process.bound_port, get("/health")))[0] == 200, "it is alive"
        serving_it.cancel()  # the delay ends here
        with pytest.raises(asyncio.CancelledError):
            await serving_it
        assert process.drain.draining
        with pytest.raises(ConnectionRefusedError):
            await ask(process.bound_port, get("/hello"))

    run(main())


class Scribe:
    """A listener that notes when, in the loop's time, it was told what."""

    def __init__(self, drain: Drain) -> None:
        self.drain = drain
        self.notes: list[tuple[str, float, bool]] = []

    def _note(self, what: str) -> None:
        self.notes.append((what, asyncio.get_running_loop().time(), self.drain.draining))

    async def open(self, sock: socket.socket) -> None:
        self._sock = sock
        self._note("open")

    def announce(self) -> None:
        self._note("announce")

    async def close(self, grace_s: float) -> None:
        self._sock.close()
        self._note("close")


def left_after(delay_s: float, *, told_before_the_start: bool = False) -> list[tuple[str, float, bool]]:
    async def main() -> list[tuple[str, float, bool]]:
        leaving = asyncio.Event()

        async def start() -> None:
            if told_before_the_start:
                leaving.set()
                await asyncio.Event().wait()

        process = build(ROUTES, drain_delay_s=delay_s, start=start)
        scribe = Scribe(process.drain)
        process.listener = scribe
        async with running(process, leaving, bind=bind):
            await asyncio.sleep(100.0 if not told_before_the_start else 0)
        return scribe.notes

    return run(main())


def test_the_listener_closes_after_the_delay_and_requests_are_refused_from_then_on() -> None:
    assert left_after(5.0) == [("open", 0.0, False), ("announce", 100.0, False), ("close", 105.0, True)]


def test_without_a_delay_the_service_drains_at_once() -> None:
    assert left_after(0.0) == [("open", 0.0, False), ("close", 100.0, True)]


def test_a_service_that_never_was_ready_leaves_without_a_delay() -> None:
    assert left_after(5.0, told_before_the_start=True) == [("open", 0.0, False), ("close", 0.0, True)]


def opened(listener: HttpListener) -> tuple[Tape, asyncio.Protocol]:
    """A connection of this listener, without a socket."""
    tape, connection = Tape(), Connection(listener._shared)
    connection.connection_made(tape)
    return tape, connection


def drive(app: App | None = None) -> tuple[HttpListener, Drain]:
    drain = Drain()
    return HttpListener(app or service(drain), GuardLimits(), 75.0), drain


KEPT = b"GET /hello HTTP/1.1\r\nhost: test\r\n\r\n"


def test_each_answer_after_the_announcement_is_the_last_on_its_connection() -> None:
    async def main() -> None:
        listener, _ = drive()
        before, old = opened(listener)
        old.data_received(KEPT)
        await until(lambda: before.written.count(b"hello") == 1, "an answer")
        assert b"connection: close" not in before.written
        listener.announce()
        assert not before.closed, "an idle connection is kept: a request may be on its way"
        after, new = opened(listener)
        for tape, connection in ((before, old), (after, new)):
            tape.written = b""
            connection.data_received(KEPT)
            await until(lambda tape=tape: tape.closed, "the close")
            assert tape.written.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close\r\n" in tape.written
            connection.connection_lost(None)

    run(main())


def test_what_is_asked_when_the_service_is_told_to_leave_is_answered_and_only_the_last_closes() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def slow(exchange: Exchange) -> None:
            await release.wait()
            await exchange.reply(200, b"slow")

        routes = {("GET", "/slow"): slow}
        log = Log("test", stream=io.BytesIO())
        app = Service("test", api_of(routes), log=log, drain=Drain())
        listener, _ = drive(app)
        tape, connection = opened(listener)
        connection.data_received(KEPT.replace(b"hello", b"slow") * 3)
        listener.announce()
        release.set()
        await until(lambda: tape.closed, "the close")
        assert tape.written.count(b"HTTP/1.1 200 ") == 3
        assert tape.written.count(b"connection: close\r\n") == 1
        connection.connection_lost(None)

    run(main())


def test_a_stream_that_has_begun_does_not_end_in_a_close_that_it_never_announced() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def stream(exchange: Exchange) -> None:
            await exchange.start(200, b"text/plain")
            await exchange.write(b"first")
            await release.wait()
            await exchange.end(b"last")

        log = Log("test", stream=io.BytesIO())
        app = Service("test", api_of({("GET", "/s"): stream}), log=log, drain=Drain())
        listener, _ = drive(app)
        tape, connection = opened(listener)
        connection.data_received(KEPT.replace(b"/hello", b"/s"))
        await until(lambda: b"first" in tape.written, "the first piece")
        listener.announce()
        release.set()
        await until(lambda: b"last" in tape.written, "the end")
        await asyncio.sleep(0)
        assert not tape.closed
        connection.connection_lost(None)

    run(main())
