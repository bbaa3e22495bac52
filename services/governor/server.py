"""The governor's protocol on sockets: carries out the actions that the protocol decides.

One read buffer serves all connections, because bytes reach the protocol before another socket is read; one step reads
at most that buffer, so a client that pipelines cannot block the loop.

The cost of a client is bounded. A client that does not read its replies is not read from and is disconnected after
`write_s`. A half-close while a job runs may be a disconnect, so the server sends keepalive lines at growing intervals:
a client that has left answers with a reset, which the next write reports, and the job is cancelled. A connection beyond
the bound gets a reply; descriptors are reserved for that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from services.governor.backends import Backend
from services.governor.gate import Gate
from services.governor.job import Ended, Result, Work
from services.governor.metrics import GovernorMetrics
from services.governor.protocol import Actions, GovernorSession
from services.runtime.budget import Budget, source_of
from services.runtime.drain import let_end
from services.runtime.errors import place_of
from services.runtime.log import Log
from services.runtime.ordered import OrderedSet

READ_BYTES = 65_536
BACKLOG = 2048
MAX_KEEPALIVES = 50  # for one job: the original's client skips as many lines
FIRST_RESET_CHECK_S = 0.25  # after a half-close, when a reset has arrived; doubled each time


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Timeouts in seconds, and bounds of connections."""

    write_s: float = 10.0
    keepalive_every_s: float = 10.0
    connections: int = 1024
    source_share: float = 1.0  # share of the connections for one address


class GovernorServer:
    """Listens and holds its connections. Opened once, closed once."""

    def __init__(
        self, gate: Gate, backend: Backend, *, limits: ServerLimits, metrics: GovernorMetrics, log: Log
    ) -> None:
        self.gate = gate
        self.backend = backend
        self.limits = limits
        self.metrics = metrics
        self.log = log
        self.connections: OrderedSet[_Connection] = OrderedSet()
        self.places = Budget(limits.connections, max(1, int(limits.connections * limits.source_share)))
        self.tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self.read_buffer = bytearray(READ_BYTES)
        self._server: asyncio.Server | None = None

    async def open(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock, backlog=BACKLOG)

    def announce(self) -> None:
        """Keep serving; health reports that new jobs should go elsewhere."""
        self.gate.leaving = True

    async def close(self, grace_s: float) -> None:
        """Stop accepting, close idle connections, let jobs end within `grace_s` seconds, then cancel the others."""
        self.gate.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()
        await let_end(self.tasks, grace_s)
        for connection in list(self.connections):
            connection.abort()
        await self.backend.close()


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, server: GovernorServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._session = GovernorSession(server.gate, self._loop.time())
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._keepalive: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._keepalives = 0
        self._keepalive_in_s = 0.0
        self._reading = True
        self._ended = False  # the client sends nothing more
        self._lost = False
        self._counted = False  # against the bound of connections
        self._source: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._transport.set_write_buffer_limits(high=0)  # so `pause_writing` reports every byte that waits here
        server = self._server
        self._source = source_of(transport.get_extra_info("peername"))
        if server.places.reserve(self._source, 1) is not None:
            server.metrics.refused_connections.inc()
            self._perform(self._session.refuse())
            return
        self._counted = True
        server.connections.add(self)
        self._run_step(self._check_idle)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(self._server.read_buffer)[:nbytes])
        self._perform(self._session.receive(data, self._loop.time()))

    def eof_received(self) -> bool:
        self._ended = True
        self._perform(self._session.half_closed(self._loop.time()))
        self._keepalive_in_s = FIRST_RESET_CHECK_S
        self._send_keepalive()
        return True  # the client may still read: `Actions.close` says when to close

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._counted:
            self._counted = False
            self._server.places.release(self._source, 1)
        self._lost = True
        if self._task is not None:
            self._task.cancel()
        for timer in (self._idle, self._keepalive, self._stalled):
            if timer is not None:
                timer.cancel()
        self._session.lost()

    def pause_writing(self) -> None:
        self._stalled = self._loop.call_later(self._server.limits.write_s, self._abort_unread)
        self._hold_unread()
        self._update_reading()

    def resume_writing(self) -> None:
        if self._lost or self._transport is None or self._transport.is_closing():
            return  # the write timeout still applies to its last reply
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._run_step(self._go_on)

    def _go_on(self) -> None:
        self._perform(self._session.go_on(self._loop.time()))

    def _run_step(self, step: Callable[[], None]) -> None:
        """Run a step from the loop. If it raises, abort the connection, which nothing else would serve again."""
        try:
            step()
        except BaseException:
            self.abort()
            raise

    def _hold_unread(self) -> None:
        """Reserve the unread replies in the gate; abort without room."""
        if self._transport is not None and not self._session.stop(self._transport.get_write_buffer_size()):
            self._abort_unread()

    def _continue_reading(self) -> None:
        """Process lines that were left because one step had MAX_OUT_BYTES of replies."""
        if self._stalled is None and not self._lost and self._transport is not None:
            self._go_on()

    def drain(self) -> None:
        self._perform(self._session.drain())

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _abort_unread(self) -> None:
        self._server.metrics.unread.inc()
        self.abort()

    def _perform(self, actions: Actions) -> None:
        transport = self._transport
        assert transport is not None
        if actions.out:
            self._write(bytes(actions.out))
        if actions.more:
            self._loop.call_soon(self._run_step, self._continue_reading)
        if actions.work is not None:
            self._begin(actions.work)
        if actions.close:
            transport.close()  # after the client has read everything, or after `write_s`
            self._stalled = self._stalled or self._loop.call_later(self._server.limits.write_s, self._abort_unread)
        else:
            self._update_reading()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
            if self._stalled is not None:
                self._hold_unread()

    def _update_reading(self) -> None:
        """Pause reading while the client does not read, or while the session's buffer is full."""
        wanted = self._stalled is None and not self._session.full
        transport = self._transport
        if transport is None or wanted == self._reading or transport.is_closing() or self._ended:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _begin(self, work: Work) -> None:
        assert self._task is None, f"a second job on one connection: {work.job!r}, {self._server.gate!r}"
        task = self._task = self._loop.create_task(self._run(work), name="governor-job")
        self._server.tasks.add(task)
        task.add_done_callback(self._job_ended)
        self._keepalives = 0
        self._keepalive_in_s = FIRST_RESET_CHECK_S if self._ended else self._server.limits.keepalive_every_s
        self._keepalive = self._loop.call_later(self._keepalive_in_s, self._run_step, self._send_keepalive)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        """If the result could not be sent, which is a bug, log it and abort, so that the client does not wait."""
        self._server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._server.log.error("the result of a job could not be sent", traceback=place_of(error))
            self.abort()

    async def _run(self, work: Work) -> None:
        """Run a job. The slot is released when the backend is done, before the reply is written."""
        began = self._loop.time()
        result = await self._result(work)
        seconds = self._loop.time() - began
        work.slot.release_slot(seconds if result.ended is Ended.DONE else None)
        self._server.metrics.ended(result.ended, seconds)
        self._task = None
        if self._keepalive is not None:
            self._keepalive.cancel()
        actions = self._session.ended(replace(result, seconds=seconds), self._loop.time())
        if not self._lost:
            self._perform(actions)

    async def _result(self, work: Work) -> Result:
        try:
            async with asyncio.timeout_at(work.deadline):
                return await self._server.backend.run(work)
        except TimeoutError:
            return Result(Ended.LATE)
        except asyncio.CancelledError:  # the client left, or the governor shuts down; the task ends here
            return Result(Ended.CANCELLED)
        except Exception as error:  # a bug in the backend must not cost the client its reply
            self._server.log.error("the backend failed", error=repr(error))
            return Result(Ended.FAILED)

    def _send_keepalive(self) -> None:
        if self._transport is None or not self._session.running or self._keepalives >= MAX_KEEPALIVES:
            return
        self._keepalives += 1
        self._write(self._session.keepalive())
        if self._keepalive is not None:
            self._keepalive.cancel()
        every_s = self._server.limits.keepalive_every_s
        self._keepalive = self._loop.call_later(
            min(self._keepalive_in_s, every_s), self._run_step, self._send_keepalive
        )
        self._keepalive_in_s = min(2 * self._keepalive_in_s, every_s)

    def _check_idle(self) -> None:
        now = self._loop.time()
        self._perform(self._session.idled(now))
        due = max(self._session.idle_at, now + 1.0) if self._session.running else self._session.idle_at
        self._idle = self._loop.call_at(max(due, now + 0.001), self._run_step, self._check_idle)
