"""One client's connection: how slowly it may send, in which order it is answered, and the way out.

    time to send the headers, then the body              408 and close
    time without a request on an open connection         close
    time a client may refuse to read                     abort
    connections, in all and of one source                429 and close
    bytes of requests that no handler has yet            503 and close, before the body is read

**Every connection has a timer, unless it answers a request.** While it waits for a request, or for the rest of one, it
has the timer of that part. While it rests it has the idle timer. While more is written than the client reads, and from
the moment on which the connection is to be closed, it has the stall timer: `transport.close()` waits for the client to
read what was written, and that may be for ever. A handler has its own deadlines.

Requests are answered in the order in which they came (RFC 9112 section 9.3.2), and a refusal by the guard waits for
its turn as well. While an answer is under way nothing is timed, since the client may be waiting for it. Timers are
armed only for a request that did not arrive whole, so the common request pays for none of this. What came with a read
and is more than MAX_PIPELINED requests stays as bytes, and is parsed when those before it have been answered.

A request's bytes are counted (`Shared.incoming`) from its first one until its handler starts, a body by its declared
length as soon as its head is here. From there on the service's own bounds hold it: in the router MAX_QUEUE_BYTES and
MAX_INFLIGHT. A request that came whole in one read and starts at once is not counted at all.

A handler starts in the turn of the loop in which its request arrives, as Python 3.12's eager tasks do: one that never
waits, such as a refusal, never needs a task. A client that leaves is reported at once to whoever asked, for streamed
and plain answers alike.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.utils import is_ssl

from services.core.outcome import Outcome
from services.runtime.budget import ALL_SOURCES, Budget, source_of
from services.runtime.errors import BadInput, Refused, WeirError
from services.runtime.framing import CONTINUE
from services.runtime.guard import HEAD, GuardLimits, Inbound
from services.runtime.http import App, Exchange, HeadCheck, become_task
from services.runtime.ids import NewId, ids_of
from services.runtime.write_coalescer import WriteCoalescer

LINGER_S = 1.0  # for a client to read why it was refused while it still sends
MAX_ANSWERS_PER_STEP = 32  # a long pipeline must not keep the other connections waiting
MAX_PIECES_PER_STEP = 64  # nor must a read that is parsed in very small pieces
MAX_PIPELINED = 16  # requests that wait behind an answer, and their bytes, until reading stops; one read more may come
MAX_PIPELINED_BYTES = 65_536
MAX_UNREAD_BYTES = 16_384  # of answers, in this process, until a handler has to wait; the kernel holds as much again
LOOKED_AT = 16  # connections, for one that can give way to a newcomer
IDLE_FOR_LONG_S = 1.0  # and may then give way
MAX_REFUSED = 16  # connections too many that may stand while they are told so; the next is dropped without a word


def _ignore_refusal(refusal: WeirError, id: str) -> None:
    pass


def last_on_its_connection(exchange: Exchange, body_bytes: int) -> None:
    """A head check that refuses nothing: the answer to this request says `connection: close`."""
    exchange.keep_alive = False


@dataclass(slots=True)
class Shared:
    """What all connections of one listener have in common."""

    app: App
    limits: GuardLimits
    idle_timeout_s: float
    refused: Callable[[WeirError, str], None] = _ignore_refusal
    checks: tuple[HeadCheck, ...] = ()
    writes: WriteCoalescer = field(default_factory=WriteCoalescer)
    connections: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)  # in the order in which they began
    new_id: NewId = field(default_factory=lambda: ids_of(None))
    date_line: bytes = b""
    closed: bool = False  # the listener is; a connection that was accepted before may only come after it
    places: Budget = field(init=False)
    incoming: Budget = field(init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.places = Budget(limits.connections, limits.connections_per_source)
        self.incoming = Budget(limits.incoming_bytes, limits.incoming_bytes_per_source)

    def register(self, newcomer: Connection, source: bytes | None, now: float) -> str | None:
        """Take a place for a connection. Returns None, or whose bound is met."""
        bound = self.places.reserve(source, 1)
        if bound is ALL_SOURCES and self._make_room(now):
            bound = self.places.reserve(source, 1)
        self.connections[newcomer] = None
        return bound

    def _make_room(self, now: float) -> bool:
        """End the connection that has been idle the longest, so that many addresses cannot keep out another one.

        `connections` is in the order in which they came or were last answered. Those at its beginning that answer a
        request go to its end; a few are looked at for each newcomer. A connection that has only just come, or just been
        answered, is never taken. So a client that opens connections ever faster does not push out those in use.
        """
        connections = self.connections
        for _ in range(min(LOOKED_AT, len(connections))):
            connection = next(iter(connections))
            if connection.idle:
                if now - connection.idle_since < IDLE_FOR_LONG_S:
                    return False
                connection.close_for_newcomer()
                connections.move_to_end(connection)
                return True
            connections.move_to_end(connection)
        return False


class Connection(asyncio.Protocol):
    """HTTP/1.1 with one client; the `Wire` of its exchanges.

    An exchange stands in the inbound line from its head on, is `_answering` from its handler's start until its answer
    is complete, and then no longer concerns the connection.
    """

    __slots__ = (
        "_answering",
        "_deaf",
        "_held",
        "_inbound",
        "_loop",
        "_over",
        "_parsed",
        "_part_timer",
        "_pipelined_bytes",
        "_reading",
        "_refusal",
        "_registered",
        "_rest_timer",
        "_resting_since",
        "_shared",
        "_source",
        "_stall_timer",
        "_timed",
        "_transport",
        "_turning",
        "_unparsed",
        "_writable",
        "_writes",
        "write_paused",
    )

    def __init__(self, shared: Shared) -> None:
        self.write_paused = False
        self._shared = shared
        self._writes = shared.writes
        self._loop = asyncio.get_running_loop()
        self._inbound = Inbound(shared.limits, self, shared.checks)
        self._source: bytes | None = None
        self._registered = False  # it is one of the connections that are counted
        self._held = 0  # bytes that are counted
        self._unparsed, self._parsed = b"", 0  # what was read, and how far it has been parsed
        self._answering: Exchange | None = None
        self._refusal: WeirError | None = None  # told when what came before it is answered
        self._deaf = False  # what still comes is not looked at
        self._over = False  # nothing more is answered
        self._turning = False
        self._reading = True
        self._pipelined_bytes = 0
        self._writable: asyncio.Event | None = None
        self._resting_since = 0.0
        self._timed = ("", 0)
        self._part_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "over" if self._over else "deaf" if self._deaf else "open"
        arriving = self._inbound.part or "nothing"
        return f"<Connection {state}, answering {self._answering}, {len(self._inbound.line)} behind, {arriving} comes>"

    def _run_step(self, step: Callable[[], None]) -> None:
        """A step that the loop takes by itself. One that fails ends the connection: nobody would look at it again."""
        try:
            step()
        except BaseException:
            self._transport.abort()
            raise

    # The connection itself

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self._transport = transport
        transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        shared = self._shared
        self._source = source_of(transport.get_extra_info("peername"))
        self._resting_since = self._loop.time()
        try:
            bound = shared.register(self, self._source, self._resting_since)
        except BaseException:
            transport.abort()
            raise
        if bound is not None:
            self._reject(bound)
            return
        self._registered = True
        if shared.closed:
            self.close()
            return
        self._part_timer = self._loop.call_later(shared.limits.headers_s, self._run_step, self._too_slow)

    def _reject(self, bound: str) -> None:
        """One connection too many: say so and close, with no time to linger; drop it where many are being told."""
        shared = self._shared
        if len(shared.connections) > shared.places.taken + MAX_REFUSED:
            self._deaf = self._over = True
            self._transport.abort()
            return
        source_text, reason = _named(bound, "connections")
        self._send_refusal(Refused(Outcome.YIELD, f"too many open connections{source_text}", reason=reason))
        self.close()

    def eof_received(self) -> None:
        """The client has closed, or its half: the two look the same, and whoever works for it is told now.

        It still gets what has been sent, if it reads it in `write_stall_s`.
        """
        answering = self._answering
        self._finish()
        if answering is not None:
            answering.lost()

    def connection_lost(self, exc: Exception | None) -> None:
        answering, self._answering = self._answering, None
        self._let_go()
        shared = self._shared
        shared.connections.pop(self, None)
        self._unregister()
        for timer in (self._part_timer, self._rest_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
        if answering is not None:
            answering.lost()

    @property
    def idle(self) -> bool:
        """Whether it asks nothing, or has not even sent the head of what it asks."""
        return self._registered and self._answering is None and not self._inbound.line and not self._unparsed

    @property
    def idle_since(self) -> float:
        """When it was made or last answered, in the loop's time."""
        return self._resting_since

    def close_for_newcomer(self) -> None:
        """End at once, for another connection."""
        self._unregister()
        self._let_go()
        self._transport.abort()

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._shared.places.release(self._source, 1)

    def last_requests(self, checks: tuple[HeadCheck, ...]) -> None:
        """The service will leave: what is asked already is answered, and the next answer after it is the last."""
        self._inbound.recheck(checks)
        unanswered = self._unanswered()
        if unanswered and not self._unparsed and not unanswered[-1].started:
            unanswered[-1].keep_alive = False

    def shutdown(self) -> None:
        """The service drains: close, or say with the answers under way that they are the last. uvicorn calls this."""
        unanswered = self._unanswered()
        for exchange in unanswered:
            exchange.keep_alive = False
        if not unanswered:
            self.close()

    def _unanswered(self) -> list[Exchange]:
        current = self._answering
        return [*([] if current is None else [current]), *self._inbound.line]

    def close(self) -> None:
        """Close, after what has been written."""
        self._finish()
        self._transport.close()

    def _finish(self) -> None:
        """Nothing more is answered. What has been written must be read in `write_stall_s`."""
        self._let_go()
        self._writes.flush()
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._shared.limits.write_stall_s, self._transport.abort)

    def _let_go(self) -> None:
        """Nothing more is answered."""
        self._deaf = self._over = True
        self._drop()

    def _drop(self) -> None:
        """Drop what waits for its turn, and give back what was counted for it."""
        self._unparsed, self._parsed = b"", 0
        self._inbound.stop()
        if self._held:
            self._shared.incoming.release(self._source, self._held)
            self._held = 0

    # The way in

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        inbound = self._inbound
        try:
            at = 0 if self._unparsed else inbound.take(data)
        except WeirError as refusal:
            at = self._refuse_from_here(refusal, data)
        if at < len(data):
            self._unparsed, self._parsed = self._unparsed[self._parsed :] + data, at
            self._parse()
        elif self._part_timer is not None:
            self._end_part()
        if inbound.part or self._unparsed or self._answering is not None:
            self._count()
        if self._answering is None:
            self._turn()
        if inbound.line or self._unparsed:
            self._hold_back(len(data))

    def _refuse_from_here(self, refusal: WeirError, data: bytes) -> int:
        """Nothing behind this is looked at. The refusal is told in its turn."""
        self._deaf = True
        self._refusal = refusal
        return len(data)

    def _parse(self) -> None:
        """Parse what was read, piece by piece, until more requests wait than should, or for as long as a turn may be.

        The rest stays as bytes and is not copied again: while there is one, reading is paused.
        """
        inbound, data, at = self._inbound, self._unparsed, self._parsed
        size, room = len(data), MAX_ANSWERS_PER_STEP if self._answering is None else MAX_PIPELINED + 1
        try:
            for _ in range(MAX_PIECES_PER_STEP):
                if at == size or len(inbound.line) >= room:
                    break
                at = inbound.take(data, at)
        except WeirError as refusal:
            at = self._refuse_from_here(refusal, data)
        self._unparsed, self._parsed = (data, at) if at < size else (b"", 0)
        if self._part_timer is not None:
            self._end_part()

    def _end_part(self) -> None:
        """Stop the timer of a part that is complete."""
        if self._part_timer is not None and self._timed != (self._inbound.part, self._inbound.completed):
            self._part_timer.cancel()
            self._part_timer = None

    def _count(self) -> None:
        """Count what this connection holds for requests that no handler has; refuse and drop what is too much.

        The refusal stands in the place of the first request that is dropped.
        """
        held = self._inbound.held + len(self._unparsed)
        if held <= self._held:
            self._shared.incoming.release(self._source, self._held - held)
            self._held = held
            return
        bound = self._shared.incoming.reserve(self._source, held - self._held)
        if bound is None:
            self._held = held
            return
        self._deaf = True
        self._drop()
        source_text, reason = _named(bound, "incoming_bytes")
        message = f"too many bytes of requests are on their way in{source_text}"
        self._refusal = Refused(Outcome.NO_CAPACITY, message, reason=reason)

    def _hold_back(self, size: int) -> None:
        """More came than is being answered. Reading goes on for a while: only who reads notices a client's leaving."""
        line = self._inbound.line
        if line and (self._answering is not None or line[0].whole):
            self._pipelined_bytes += size
        if self._unparsed or self._pipelined_bytes > MAX_PIPELINED_BYTES or len(line) > MAX_PIPELINED:
            self._reading = False
            self._transport.pause_reading()

    def _turn(self) -> None:
        """Answer what is here, in order, until an answer takes its time; then see to what is still coming."""
        line = self._inbound.line
        self._turning = True
        for _ in range(MAX_ANSWERS_PER_STEP):
            if self._answering is not None or self._over or not line or not line[0].whole:
                break
            self._start(line.popleft())
        else:
            self._turning = False
            self._loop.call_soon(self._run_step, self._turn)
            return
        self._turning = False
        if (line or self._held) and not self._over:
            self._count()
        if self._answering is None and not self._over and not (line and line[0].whole):
            self._wait_for_more()

    def _start(self, exchange: Exchange) -> None:
        """Start a handler at once; one that does not end at once goes on as a task.

        What it waits for is not looked at: one that waits before `become_task` fails in its task, and is answered 500.
        """
        assert self._answering is None, f"{exchange!r} would be answered out of turn: {self!r}"
        self._answering = exchange
        refusal, app = exchange.refusal, self._shared.app
        handler: Coroutine[Any, Any, None] = (
            app.handle(exchange) if refusal is None else self._refuse_in_turn(exchange, refusal)
        )
        try:
            handler.send(None)
        except StopIteration:
            return
        exchange.task = task = self._loop.create_task(handler)
        self._shared.tasks[task] = None

    def _wait_for_more(self) -> None:
        """Everything that is here and parsed has been answered."""
        if self._refusal is not None:
            self._send_refusal(self._refusal)
            return
        if self._unparsed:
            self._parse()
            self._loop.call_soon(self._run_step, self._turn)
            return
        self._pipelined_bytes = 0
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._inbound.part:
            self._watch_request(self._inbound.part)

    def _watch_request(self, part: str) -> None:
        """Give what has begun to come its time, once: a byte a minute must not push the limit back."""
        if self._inbound.asks_to_continue:
            self._inbound.may_continue()
            self.send(CONTINUE)
        if self._part_timer is None:
            limits = self._shared.limits
            self._timed = (part, self._inbound.completed)
            self._part_timer = self._loop.call_later(
                limits.headers_s if part is HEAD else limits.body_s, self._run_step, self._too_slow
            )

    def _too_slow(self) -> None:
        self._part_timer = None
        part, limits = self._inbound.part, self._shared.limits
        if not part:
            self.close()  # nothing was asked: nothing to answer
            return
        seconds = limits.headers_s if part is HEAD else limits.body_s
        self._deaf = True
        self._refusal = BadInput(f"the {part} took longer than {seconds:g} s", status=408, code="request_timeout")
        self._turn()

    def _rested(self) -> None:
        """Close a connection that has rested long enough; look again later at one that has not."""
        self._rest_timer = None
        left = self._shared.idle_timeout_s - (self._loop.time() - self._resting_since)
        if self._answering is not None or self._inbound.part or self._inbound.line:
            left = max(left, 1.0)
        if left > 0:
            self._rest_timer = self._loop.call_later(left, self._run_step, self._rested)
        else:
            self.close()

    # The way out: what an exchange asks of its wire

    @property
    def scheme(self) -> str:
        return "https" if is_ssl(self._transport) else "http"

    @property
    def date_line(self) -> bytes:
        return self._shared.date_line

    def send(self, data: bytes) -> None:
        self._writes.write(self._transport, data)

    async def until_read(self) -> None:
        await become_task()
        while self.write_paused and self._writable is not None:
            await self._writable.wait()

    def answered(self, exchange: Exchange) -> None:
        self._answering = None
        if not exchange.keep_alive:
            self._linger() if self._refusal is not None else self.close()
            return
        self._resting_since = self._loop.time()
        self._shared.connections.move_to_end(self)
        if self._rest_timer is None:
            self._rest_timer = self._loop.call_later(self._shared.idle_timeout_s, self._run_step, self._rested)
        if not self._turning and (self._pipelined_bytes or self._unparsed or self._inbound.part or self._refusal):
            self._loop.call_soon(self._run_step, self._turn)

    def ended(self, exchange: Exchange) -> None:
        if exchange.task is not None:
            self._shared.tasks.pop(exchange.task, None)
            exchange.task = None
        if self._answering is exchange:
            self.close()  # an answer without its end must not be taken for whole

    def pause_writing(self) -> None:
        self.write_paused = True
        self._writable = asyncio.Event()
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._shared.limits.write_stall_s, self._transport.abort)

    def resume_writing(self) -> None:
        """The client has read. A connection that is to be closed has its time anew, for what is left."""
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._over:
            self._finish()

    def _send_refusal(self, refusal: WeirError) -> None:
        """Refuse from here, and close."""
        self._let_go()
        self._refusal = refusal
        exchange = Exchange(self, "", "", [])
        shared = self._shared
        exchange.id, exchange.always, exchange.keep_alive = shared.new_id(8), shared.app.always, False
        exchange.refuse_now(refusal)
        self._shared.refused(refusal, exchange.id)

    async def _refuse_in_turn(self, exchange: Exchange, refusal: WeirError) -> None:
        """Answer in the place of the app what a head check refused; the connection goes on."""
        exchange.id, exchange.always = self._shared.new_id(8), self._shared.app.always
        try:
            await exchange.refuse(refusal)
        finally:
            exchange.ended()
        self._shared.refused(refusal, exchange.id)

    def _linger(self) -> None:
        """Close so that the refusal arrives: what the client is still sending would make the kernel reset it away."""
        self._finish()
        if self._transport.can_write_eof():  # TLS has no half-closed connections
            self._transport.write_eof()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._part_timer is not None:
            self._part_timer.cancel()
        self._part_timer = self._loop.call_later(LINGER_S, self._transport.close)


def _named(bound: str, what: str) -> tuple[str, str]:
    """How a message and a reason name a bound that was met."""
    return ("", what) if bound is ALL_SOURCES else (" from this address", f"source_{what}")
