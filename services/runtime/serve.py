"""Runs a service: sockets, guard, signals, drain (docs/operations/lifecycle.md).

SIGTERM or SIGINT drains and exits with 0; a second signal ends the service at once. The metrics listener answers until
the end. A process whose event loop stands still for `watchdog_s` is ended (`watchdog`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from random import Random
from typing import Protocol

import uvloop
from prometheus_client import CollectorRegistry

from services import compiled
from services.runtime.api import forget_endpoints
from services.runtime.clock import wall_clock
from services.runtime.descriptors import SPARE, connections_allowed
from services.runtime.drain import Drain, let_end
from services.runtime.edge_metrics import EdgeMetrics, LostLines
from services.runtime.framing import block
from services.runtime.guard import GuardLimits
from services.runtime.http import App, Exchange, HeadCheck
from services.runtime.ids import NewId, ids_of
from services.runtime.log import Log
from services.runtime.server import BACKLOG, Config, Server
from services.runtime.service import Service
from services.runtime.settings import ServiceSettings
from services.runtime.shared import Shared
from services.runtime.starting import CannotStart, PortTaken
from services.runtime.tls import NO_TLS, TlsFiles
from services.runtime.tracing import Tracer, tracer_of
from services.runtime.watchdog import watched

SEND_BUFFER_BYTES = 65_536  # the most that the kernel buffers for a client that does not read
METRICS_CONNECTIONS = 128  # scrapers, operators, and with a tenants file up to 64 console viewers
METRICS_INCOMING_BYTES = 8_388_608
FILES = 32  # descriptors for model files, pipes of child processes, DNS
LAST_TURNS = 4  # of the event loop before a listener closes: what the kernel has queued is still accepted and read
LAST_SPANS_S = 2.0  # for the export of the last traces when a service stops

Bind = Callable[[str, int, str], socket.socket]
"""Listens at (host, port, name of the port's setting). Raises PortTaken, which names the setting."""


async def _nothing() -> None:
    return None


def _leave_nothing() -> None:
    return None


class Listener(Protocol):
    """Serves a bound socket: by HTTP (`HttpListener`) or another protocol."""

    async def open(self, sock: socket.socket) -> None:
        """Start to accept."""
        ...

    def announce(self) -> None:
        """Continue to serve; tell each connection that its next answer is its last."""
        ...

    async def close(self, grace_s: float) -> None:
        """Stop accepting, let running requests finish within `grace_s` seconds, and cancel the rest."""
        ...


@dataclass
class Process:
    """A built service, which `app.py` returns and `run` runs. Port 0 means any free port."""

    name: str
    listener: Listener
    metrics: App
    log: Log
    drain: Drain
    host: str
    port: int
    metrics_host: str
    metrics_port: int
    metrics_checks: tuple[HeadCheck, ...] = ()
    drain_timeout_s: float = 10.0
    drain_delay_s: float = 0.0
    watchdog_s: float = 0.0
    start: Callable[[], Awaitable[None]] = _nothing
    stop: Callable[[], Awaitable[None]] = _nothing
    reload: Callable[[], None] | None = None  # on SIGHUP, which ends the process otherwise
    leave: Callable[[], None] = _leave_nothing  # drains it, as SIGTERM does; set while it runs
    port_variable: str = ""
    tracer: Tracer | None = None
    bound_port: int = 0
    bound_metrics_port: int = 0
    new_id: NewId = field(default_factory=lambda: ids_of(None))  # for refusals of the metrics listener
    registry: CollectorRegistry | None = None  # of the metrics listener; for test beds and debuggers
    inside: object = None  # holds the requests; for test beds and debuggers only


def from_settings(
    settings: ServiceSettings,
    *,
    name: str,
    port: int,
    port_variable: str,
    app: Service,
    metrics: App,
    registry: CollectorRegistry,
    log: Log,
    drain: Drain,
    start: Callable[[], Awaitable[None]],
    stop: Callable[[], Awaitable[None]],
    reload: Callable[[], None] | None = None,
    checks: tuple[HeadCheck, ...] = (),
    metrics_checks: tuple[HeadCheck, ...] = (),
    upstream_connections: int = 0,
    tls: TlsFiles = NO_TLS,
    rng: Random | None = None,
    inside: object = None,
) -> Process:
    """A service with the limits, addresses, metrics and traces that every service has.

    `upstream_connections` is how many connections the service itself may open at once; as many file descriptors are
    reserved. `rng` makes ids; by default the operating system does.
    """
    app.tracer = tracer_of(settings, port_variable.removesuffix("_PORT").lower(), name, registry, log, rng)
    front, new_id = EdgeMetrics(registry, log), ids_of(rng)
    LostLines(registry, log)
    limits = GuardLimits(
        body_bytes=settings.max_body_bytes,
        headers_s=settings.client_timeout_s / 3,
        body_s=settings.client_timeout_s,
        write_stall_s=settings.write_stall_s,
        connections=_connections(settings, log, _beside(upstream_connections)),
        incoming_bytes=settings.max_incoming_bytes,
        source_share=settings.max_source_share,
    )
    return Process(
        name=name,
        listener=HttpListener(app, limits, settings.idle_timeout_s, front, checks, new_id, tls),
        metrics=metrics,
        log=log,
        drain=drain,
        host=settings.host,
        port=port,
        metrics_host=settings.metrics_host,
        metrics_port=settings.metrics_port,
        metrics_checks=metrics_checks,
        drain_timeout_s=settings.drain_timeout_s,
        drain_delay_s=settings.drain_delay_s,
        watchdog_s=settings.watchdog_s,
        start=start,
        stop=stop,
        reload=reload,
        port_variable=port_variable,
        tracer=app.tracer,
        new_id=new_id,
        registry=registry,
        inside=inside,
    )


def open_files_needed(settings: ServiceSettings, upstream_connections: int) -> int:
    """Descriptors of a service with all its connections open."""
    return settings.max_connections + _beside(upstream_connections) + SPARE


def _beside(upstream_connections: int) -> int:
    """Descriptors that are no client connections, SPARE apart."""
    return upstream_connections + METRICS_CONNECTIONS + FILES


def _connections(settings: ServiceSettings, log: Log, beside: int) -> int:
    allowed = connections_allowed(settings.max_connections, beside)
    if allowed < settings.max_connections:
        log.warning(
            "MAX_CONNECTIONS lowered to fit the open-file limit: raise the limit (ulimit -n)",
            asked=settings.max_connections,
            allowed=allowed,
            kept_for_other_use=beside + SPARE,
        )
    return allowed


def last_on_its_connection(exchange: Exchange, body_bytes: int) -> None:
    """A head check that refuses nothing: the answer to this request says `connection: close`."""
    exchange.keep_alive = False


class HttpListener:
    """One listening socket and its connections, served by uvicorn."""

    def __init__(
        self,
        app: App,
        limits: GuardLimits,
        idle_timeout_s: float,
        front: EdgeMetrics | None = None,
        checks: tuple[HeadCheck, ...] = (),
        new_id: NewId | None = None,
        tls: TlsFiles = NO_TLS,
    ) -> None:
        self.app = app
        self._shared = Shared(app, limits, idle_timeout_s, checks=checks, new_id=new_id or ids_of(None))
        if front is not None:
            self._shared.refused = front.refused
            front.watch(lambda: len(self._shared.connections), lambda: self._shared.incoming.taken)
        self._server = Server(Config(self._shared, tls))
        self._dating: asyncio.Task[None] | None = None

    async def open(self, sock: socket.socket) -> None:
        self._dating = asyncio.get_running_loop().create_task(self._keep_the_date())
        await asyncio.sleep(0)  # so that the first answer has a date
        await self._server.startup([sock])

    async def accept_from(self, sock: socket.socket) -> asyncio.Server:
        """Accept from one more socket, until the server that is returned is closed."""
        return await self._server.listen(sock)

    async def stop_accepting(self) -> None:
        """Close the listening socket, and continue to serve the connections."""
        await last_turns()
        self._server.stop_listening()

    @property
    def connections(self) -> int:
        return len(self._shared.connections)

    async def _keep_the_date(self) -> None:
        while True:
            self._shared.date_line = block([(b"date", formatdate(wall_clock()(), usegmt=True).encode("ascii"))])
            await asyncio.sleep(1.0)

    def announce(self) -> None:
        """Continue to serve; each answer from here on says `connection: close` (RFC 9112 section 9.6)."""
        shared = self._shared
        shared.checks = (last_on_its_connection, *shared.checks)
        for connection in list(shared.connections):
            connection.last_requests(shared.checks)

    async def close(self, grace_s: float) -> None:
        await last_turns()
        shared = self._shared
        shared.closed = True
        self._server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # a float works
        await self._server.shutdown()
        await let_end(shared.tasks, 0.0)
        for connection in list(shared.connections):
            connection.close()
        if self._dating is not None:
            self._dating.cancel()


async def last_turns() -> None:
    """Let the loop accept what the kernel has queued, before a listener closes."""
    for _ in range(LAST_TURNS):
        await asyncio.sleep(0)


def listening_socket(host: str, port: int, variable: str) -> socket.socket:
    """A socket that listens there. Raises PortTaken, which names the setting `variable`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY for this protocol
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise PortTaken(f"cannot listen on {host}:{port} ({reason}); choose another port with {variable}") from None
    sock.setblocking(False)
    return sock


@contextlib.asynccontextmanager
async def running(
    process: Process, leaving: asyncio.Event | None = None, *, bind: Bind = listening_socket
) -> AsyncIterator[Process]:
    """Serve while the block runs, then drain. Raises PortTaken before anything has started, and CannotStart.

    `leaving` ends a long start, such as the load of a model; the block then runs all the same. `bind` makes the
    sockets; only `getsockname`, `close` and the loop's `create_server` use them.
    """
    variable = process.port_variable or f"{process.name.upper()}_PORT"
    public_socket = bind(process.host, process.port, variable)
    try:
        metrics_socket = bind(process.metrics_host, process.metrics_port, "METRICS_PORT")
    except PortTaken:
        public_socket.close()
        raise
    process.bound_port = public_socket.getsockname()[1]
    process.bound_metrics_port = metrics_socket.getsockname()[1]
    public = process.listener
    limits = GuardLimits(connections=METRICS_CONNECTIONS, incoming_bytes=METRICS_INCOMING_BYTES)
    metrics = HttpListener(process.metrics, limits, 30.0, checks=process.metrics_checks, new_id=process.new_id)
    await public.open(public_socket)
    await metrics.open(metrics_socket)
    try:
        ready = await _started(process, leaving)
        where = {"port": process.bound_port, "metrics_port": process.bound_metrics_port, "host": process.host}
        process.log.info("listening", **where, hot_path="compiled" if compiled.in_use() else "python")
        yield process
        if ready:
            await _announced(process)
    finally:
        process.drain.begin()
        await public.close(process.drain_timeout_s)
        await process.stop()
        await metrics.close(1.0)
        if process.tracer is not None:
            await asyncio.to_thread(process.tracer.sink.close, LAST_SPANS_S)
        forget_endpoints()
        process.log.info("stopped")


async def _announced(process: Process) -> None:
    """Turn unready, and serve until load balancers have noticed (`drain_delay_s`)."""
    if process.drain_delay_s > 0:
        process.drain.announce()
        process.listener.announce()
        process.log.info("draining", drain_delay_s=process.drain_delay_s)
        await asyncio.sleep(process.drain_delay_s)


async def _started(process: Process, leaving: asyncio.Event | None) -> bool:
    """Whether the start is complete; False if `leaving` ended it. Raises what the start raises."""
    starting = asyncio.ensure_future(process.start())
    leave_requested = asyncio.ensure_future((leaving or asyncio.Event()).wait())
    try:
        await asyncio.wait([starting, leave_requested], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            return True
        return False
    finally:
        ended = [starting, leave_requested]
        for task in ended:
            task.cancel()
        await asyncio.wait(ended)


class FineClockLoop(uvloop.Loop):
    """uvloop with Python's clock: its own counts whole milliseconds, half of what a small answer takes."""

    time = staticmethod(time.monotonic)  # seconds; called several times per request


def run(build: Callable[[], Process | Awaitable[Process]], *, bind: Bind = listening_socket) -> int:
    """Build the service and run it until a signal. Returns the exit status of the process. `bind` makes its sockets."""
    quiet_collector()
    with asyncio.Runner(loop_factory=FineClockLoop) as runner:
        return runner.run(_run(build, bind))


def quiet_collector() -> None:
    """Collect garbage seldom: what is loaded lives as long as the process, and a pass over it is a pause."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _run(build: Callable[[], Process | Awaitable[Process]], bind: Bind) -> int:
    built = build()
    process = await built if inspect.isawaitable(built) else built
    leaving = asyncio.Event()
    process.leave = leaving.set
    _on_signals(leaving, process.reload)
    process.log.capture_stdlib("asyncio")
    process.log.capture_stdlib("uvicorn.error")
    try:
        with watched(process.watchdog_s, process.log):
            async with running(process, leaving, bind=bind):
                await leaving.wait()
    except CannotStart as error:
        sys.stderr.write(f"{process.name}: {error}\n")
        return error.exit_status
    finally:
        process.log.close()
    return 0


def _on_signals(leaving: asyncio.Event, reload: Callable[[], None] | None) -> None:
    def received() -> None:
        if leaving.is_set():
            os._exit(1)  # the second signal
        leaving.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
