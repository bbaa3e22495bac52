"""Run a service: sockets, guard, signals, drain.

SIGTERM or SIGINT: the service turns unready, stops accepting, finishes what runs within `drain_timeout_s`, and exits
with 0. A second signal leaves at once. The metrics listener answers until the very end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import uvicorn
import uvloop
from starlette.types import ASGIApp

from services.runtime.drain import Drain
from services.runtime.guard import GuardLimits, guarded
from services.runtime.log import Log

EXIT_PORT_TAKEN = 3
SEND_BUFFER_BYTES = 65_536  # what a client that does not read can make the kernel hold for it


async def _nothing() -> None:
    return None


@dataclass
class Process:
    """One service, built: what `app.py` returns and `run` runs. Port 0 means any free one."""

    name: str
    app: ASGIApp
    metrics: ASGIApp
    log: Log
    drain: Drain
    host: str
    port: int
    metrics_host: str
    metrics_port: int
    limits: GuardLimits = field(default_factory=GuardLimits)
    idle_timeout_s: float = 75.0
    drain_timeout_s: float = 10.0
    start: Callable[[], Awaitable[None]] = _nothing
    stop: Callable[[], Awaitable[None]] = _nothing
    port_variable: str = ""
    bound_port: int = 0
    bound_metrics_port: int = 0


class PortTaken(Exception):
    """An address cannot be listened on; the message says which, why, and what to do."""


class _Listener(uvicorn.Server):
    """uvicorn's server without its signal handling: `run` owns the signals of the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int, variable: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise PortTaken(f"cannot listen on {host}:{port} ({reason}); choose another port with {variable}") from None
    sock.setblocking(False)
    return sock


def _listener(app: ASGIApp, limits: GuardLimits, idle_timeout_s: float, grace_s: float) -> _Listener:
    config = uvicorn.Config(
        app, http=guarded(limits), ws="none", lifespan="off", loop="none", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=math.ceil(idle_timeout_s),
        timeout_graceful_shutdown=math.ceil(grace_s),
    )  # fmt: skip
    return _Listener(config)


@contextlib.asynccontextmanager
async def running(process: Process) -> AsyncIterator[Process]:
    """Serve for as long as the block lasts, then drain. Raises PortTaken before anything has started."""
    variable = process.port_variable or f"{process.name.upper()}_PORT"
    public_socket = _bind(process.host, process.port, variable)
    try:
        metrics_socket = _bind(process.metrics_host, process.metrics_port, "METRICS_PORT")
    except PortTaken:
        public_socket.close()
        raise
    process.bound_port = public_socket.getsockname()[1]
    process.bound_metrics_port = metrics_socket.getsockname()[1]
    public = _listener(process.app, process.limits, process.idle_timeout_s, process.drain_timeout_s)
    metrics = _listener(process.metrics, GuardLimits(connections=64), 30.0, 1.0)
    serving = asyncio.create_task(public.serve([public_socket]))
    measuring = asyncio.create_task(metrics.serve([metrics_socket]))
    try:
        await process.start()
        where = {"port": process.bound_port, "metrics_port": process.bound_metrics_port, "host": process.host}
        process.log.info("listening", **where)
        yield process
    finally:
        process.drain.begin()
        await _leave(public, serving)
        await process.stop()
        await _leave(metrics, measuring)
        process.log.info("stopped")


async def _leave(listener: _Listener, serving: asyncio.Task[None]) -> None:
    listener.should_exit = True
    await serving
    cut = set(listener.server_state.tasks)  # those that outlasted the grace were cancelled: let them end
    if cut:
        await asyncio.wait(cut, timeout=1.0)
    for connection in list(listener.server_state.connections):
        connection.transport.abort()


def run(build: Callable[[], Process | Awaitable[Process]]) -> int:
    """Build the service and run it until a signal. Returns the exit status of the process."""
    _quiet_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(build))


def _quiet_collector() -> None:
    """What was imported lives as long as the process: the cycle collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _run(build: Callable[[], Process | Awaitable[Process]]) -> int:
    built = build()
    process = await built if inspect.isawaitable(built) else built
    leaving = asyncio.Event()
    _on_signals(leaving)
    process.log.capture_stdlib("uvicorn", "uvicorn.error", "asyncio")
    try:
        async with running(process):
            await leaving.wait()
    except PortTaken as error:
        sys.stderr.write(f"{process.name}: {error}\n")
        return EXIT_PORT_TAKEN
    finally:
        process.log.close()
    return 0


def _on_signals(leaving: asyncio.Event) -> None:
    def received() -> None:
        if leaving.is_set():
            os._exit(1)  # asked twice: leave now
        leaving.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
