"""The protocol on sockets: what it decides is carried out here, and nothing is decided.

One buffer serves all connections, since what was read is handed over before anything else is read: an idle connection
costs its objects and no more. A turn reads no more than that buffer holds, so that nobody who pipelines keeps the loop.

What a peer can do to the rest is bounded. Replies wait in the kernel's send buffer alone: a peer that leaves more
unread is not read from and its replies are held in the gate, and it is cut off after `write_s`.
One that hangs up while its job runs has its job cancelled: the end of its sending may be only that, so it is sent a
word, to which a peer that is really gone answers with a reset. Only writing again shows it: so a second word follows
soon, and others later and later. One connection too many is told so; descriptors
are kept for that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from services.governor.backends import Backend
from services.governor.gate import Gate
from services.governor.metrics import GovernorMetrics
from services.governor.protocol import Conversation, Ended, Result, Turn, Work
from services.runtime.budget import Budget, source_of
from services.runtime.drain import let_end
from services.runtime.errors import place_of
from services.runtime.log import Log
from services.runtime.ordered import OrderedSet

READ_BYTES = 65_536
BACKLOG = 2048
MOST_WORDS = 50  # that a job is not forgotten: as many as the original's client reads over
ASK_AGAIN_S = 0.25  # after the end of a peer's sending: a reset has come by then; doubled each time


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, and for how many."""

    write_s: float = 10.0
    word_every_s: float = 10.0
    connections: int = 1024
    source_share: float = 1.0  # of the connections, for one address


class Server:
    """Listens, and keeps its connections. Made once; opened once; closed once."""

    def __init__(self, gate: Gate, backend: Backend, *, patience: Patience, metrics: GovernorMetrics, log: Log) -> None:
        self.gate = gate
        self.backend = backend
        self.patience = patience
        self.metrics = metrics
        self.log = log
        self.connections: OrderedSet[_Connection] = OrderedSet()
        self.places = Budget(patience.connections, max(1, int(patience.connections * patience.source_share)))
        self.tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self.read_buffer = bytearray(READ_BYTES)
        self._server: asyncio.Server | None = None

    async def open(self, sock: socket.socket) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock, backlog=BACKLOG)

    def announce(self) -> None:
        """Go on serving; what asks whether a job is welcome is told that it is not."""
        self.gate.leaving = True

    async def close(self, grace_s: float) -> None:
        """Accept no more; tell who only waits; let what runs end within the grace, and cancel the rest."""
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
    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._conversation = Conversation(server.gate, self._loop.time())
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._word: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._words = 0
        self._word_in_s = 0.0
        self._reading = True
        self._ended = False  # its peer sends nothing more
        self._lost = False
        self._placed = False  # it is one of the connections that are counted
        self._source: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._transport.set_write_buffer_limits(high=0)  # so `pause_writing` tells of every byte that waits here
        server = self._server
        self._source = source_of(transport.get_extra_info("peername"))
        if server.places.reserve(self._source, 1) is not None:
            server.metrics.refused_connections.inc()
            self._carry_out(self._conversation.refuse())
            return
        self._placed = True
        server.connections.add(self)
        self._called(self._look_for_idleness)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(self._server.read_buffer)[:nbytes])
        self._carry_out(self._conversation.receive(data, self._loop.time()))

    def eof_received(self) -> bool:
        self._ended = True
        self._carry_out(self._conversation.half_closed(self._loop.time()))
        self._word_in_s = ASK_AGAIN_S
        self._say_a_word()
        return True  # replies may still be read: the turn says when to close

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._placed:
            self._placed = False
            self._server.places.release(self._source, 1)
        self._lost = True
        if self._task is not None:
            self._task.cancel()
        for timer in (self._idle, self._word, self._stalled):
            if timer is not None:
                timer.cancel()
        self._conversation.lost()

    def pause_writing(self) -> None:
        self._stalled = self._loop.call_later(self._server.patience.write_s, self._give_up)
        self._hold_unread()
        self._read_or_not()

    def resume_writing(self) -> None:
        if self._lost or self._transport is None or self._transport.is_closing():
            return  # its last words still have to be read in time
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._called(self._go_on)

    def _go_on(self) -> None:
        self._carry_out(self._conversation.go_on(self._loop.time()))

    def _called(self, step: Callable[[], None]) -> None:
        """A step that the loop takes by itself. One that fails ends the connection: nobody would look at it again."""
        try:
            step()
        except BaseException:
            self.abort()
            raise

    def _hold_unread(self) -> None:
        """Replies that wait here are held memory; where there is no room for them, the connection ends."""
        if self._transport is not None and not self._conversation.stop(self._transport.get_write_buffer_size()):
            self._give_up()

    def _look_on(self) -> None:
        """At the lines that were left when the replies of one turn became many."""
        if self._stalled is None and not self._lost and self._transport is not None:
            self._go_on()

    def drain(self) -> None:
        """Leave, unless a job runs."""
        self._carry_out(self._conversation.drain())

    def abort(self) -> None:
        """Now."""
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        self._server.metrics.unread.inc()
        self.abort()

    def _carry_out(self, turn: Turn) -> None:
        transport = self._transport
        assert transport is not None
        if turn.out:
            self._write(bytes(turn.out))
        if turn.more:
            self._loop.call_soon(self._called, self._look_on)
        if turn.work is not None:
            self._begin(turn.work)
        if turn.close:
            transport.close()  # once what was written has been read, or nobody does
            self._stalled = self._stalled or self._loop.call_later(self._server.patience.write_s, self._give_up)
        else:
            self._read_or_not()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
            if self._stalled is not None:
                self._hold_unread()

    def _read_or_not(self) -> None:
        """Whoever does not read, or has sent more than can be looked at now, is not read from."""
        wanted = self._stalled is None and not self._conversation.full
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
        self._words = 0
        self._word_in_s = ASK_AGAIN_S if self._ended else self._server.patience.word_every_s
        self._word = self._loop.call_later(self._word_in_s, self._called, self._say_a_word)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        """One whose end could not be told is a fault of ours; its client is not left to wait for it."""
        self._server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._server.log.error("a job's end could not be told", traceback=place_of(error))
            self.abort()

    async def _run(self, work: Work) -> None:
        """The place is given back when the backend is through, and before the reply is written."""
        began = self._loop.time()
        result = await self._result(work)
        seconds = self._loop.time() - began
        work.place.give_back(seconds if result.ended is Ended.DONE else None)
        self._server.metrics.ended(result.ended, seconds)
        self._task = None
        if self._word is not None:
            self._word.cancel()
        turn = self._conversation.ended(replace(result, seconds=seconds), self._loop.time())
        if not self._lost:
            self._carry_out(turn)

    async def _result(self, work: Work) -> Result:
        try:
            async with asyncio.timeout_at(work.deadline):
                return await self._server.backend.run(work)
        except TimeoutError:
            return Result(Ended.LATE)
        except asyncio.CancelledError:  # the client has gone, or the governor goes: either way the task ends here
            return Result(Ended.CANCELLED)
        except Exception as error:  # a fault of ours must not cost the connection its reply
            self._server.log.error("the backend failed", fault=repr(error))
            return Result(Ended.FAILED)

    def _say_a_word(self) -> None:
        """To a peer whose job runs: one that has gone answers with a reset."""
        if self._transport is None or not self._conversation.running or self._words >= MOST_WORDS:
            return
        self._words += 1
        self._write(self._conversation.still_running())
        if self._word is not None:
            self._word.cancel()
        every_s = self._server.patience.word_every_s
        self._word = self._loop.call_later(min(self._word_in_s, every_s), self._called, self._say_a_word)
        self._word_in_s = min(2 * self._word_in_s, every_s)

    def _look_for_idleness(self) -> None:
        now = self._loop.time()
        self._carry_out(self._conversation.idled(now))
        due = max(self._conversation.idle_at, now + 1.0) if self._conversation.running else self._conversation.idle_at
        self._idle = self._loop.call_at(max(due, now + 0.001), self._called, self._look_for_idleness)
