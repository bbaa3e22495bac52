"""One client's connection: how slowly the client may send, in which order it is answered, and how it closes.

    time to send the headers, then the body              408 and close
    time without a request on an open connection         close
    time a client may refuse to read                     abort
    connections, in all and of one source                429 and close
    bytes of requests that no handler has yet,
    and of large bodies that are being answered          503 and close, before the body is read

A connection has a timer unless it answers a request; a handler has its own deadline. Requests and refusals are
answered in the order of arrival (RFC 9112 section 9.3.2). A request's bytes count in `Shared.incoming` until its
handler starts, those of a body above LARGE_BODY_BYTES until it is answered; a declared body counts from its head on.
What arrives whole and starts at once costs neither timer nor count. The reasons are in decision records 044 and 072.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from services.core.outcome import Outcome
from services.runtime.budget import bound_text, source_of
from services.runtime.client_stream import ClientStream
from services.runtime.errors import BadInput, Refused, WeirError
from services.runtime.framing import CONTINUE
from services.runtime.guard import HEAD, Inbound
from services.runtime.http import Exchange, HeadCheck
from services.runtime.shared import Shared

LINGER_S = 1.0  # for a client that still sends to read its refusal
MAX_ANSWERS_PER_STEP = 32  # a long pipeline must not delay the other connections
MAX_PIECES_PER_STEP = 64  # nor must a read that is parsed in very small pieces
MAX_PIPELINED = 16  # requests, and their bytes, behind an answer before reading pauses; one more read may arrive
MAX_PIPELINED_BYTES = 65_536
LARGE_BODY_BYTES = 262_144  # more than one read brings: such a body counts as long as its request is here
MAX_UNREAD_BYTES = 16_384  # of answers in this process before a handler waits; the kernel buffers as much again
MAX_REFUSED = 16  # excess connections that may be open while they get their refusal; further ones are dropped


class Connection(ClientStream):
    """HTTP/1.1 with one client; the `Wire` of its exchanges. `_answering` has a handler, and no complete answer yet."""

    __slots__ = (
        "_answering",
        "_held",
        "_idle_timer",
        "_ignores_input",
        "_inbound",
        "_parsed",
        "_part_timer",
        "_pipelined_bytes",
        "_reading",
        "_refusal",
        "_starting",
        "_timed_part",
        "_unparsed",
        "idle_since",
    )

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.idle_since = 0.0  # when it was made or last answered, in the loop's time
        self._inbound = Inbound(shared.limits, self, shared.checks)
        self._held = 0  # bytes counted in `Shared.incoming`
        self._unparsed, self._parsed = b"", 0  # what was read, and how far it has been parsed
        self._answering: Exchange | None = None
        self._refusal: WeirError | None = None  # sent once everything before it is answered
        self._ignores_input = False
        self._starting = False  # `_answer_queued` is running
        self._reading = True
        self._pipelined_bytes = 0
        self._timed_part = ("", 0)
        self._part_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "closing" if self._closing else "ignoring input" if self._ignores_input else "open"
        arriving = self._inbound.part or "nothing"
        return f"<Connection {state}, answering {self._answering}, {len(self._inbound.queue)} behind, {arriving} comes>"

    # The connection itself

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        shared = self._shared
        self._source = source_of(transport.get_extra_info("peername"))
        self.idle_since = self._loop.time()
        try:
            bound = shared.register(self, self._source, self.idle_since)
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
        self._part_timer = self._loop.call_later(shared.limits.headers_s, self._run_step, self._part_timed_out)

    def _reject(self, bound: str) -> None:
        """Refuse a connection above a bound and close it at once; drop it where MAX_REFUSED are being refused."""
        shared = self._shared
        if len(shared.connections) > shared.places.taken + MAX_REFUSED:
            self._ignores_input = self._closing = True
            self._transport.abort()
            return
        source_text, reason = bound_text(bound, "connections")
        self._send_refusal(Refused(Outcome.YIELD, f"too many open connections{source_text}", reason=reason))
        self.close()

    def eof_received(self) -> None:
        """The client has closed the connection or its half of it (the two look the same): cancel its request."""
        answering = self._answering
        self._finish()
        if answering is not None:
            answering.lost()

    def connection_lost(self, exc: Exception | None) -> None:
        answering, self._answering = self._answering, None
        self._stop()
        shared = self._shared
        shared.connections.pop(self, None)
        self._unregister()
        for timer in (self._part_timer, self._idle_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
        if answering is not None:
            answering.lost()

    @property
    def idle(self) -> bool:
        """Whether it has no request, or at most an incomplete head."""
        return self._registered and self._answering is None and not self._inbound.queue and not self._unparsed

    def close_for_newcomer(self) -> None:
        """Abort at once, to make room for another connection."""
        self._unregister()
        self._stop()
        self._transport.abort()

    def last_requests(self, checks: tuple[HeadCheck, ...]) -> None:
        """The service will stop: answer the requests that are here; the next answer after them is the last."""
        self._inbound.recheck(checks)
        unanswered = self._unanswered()
        if unanswered and not self._unparsed and not unanswered[-1].started:
            unanswered[-1].keep_alive = False

    def shutdown(self) -> None:
        """The service drains: close, or send `connection: close` with the answers under way. uvicorn calls this."""
        unanswered = self._unanswered()
        for exchange in unanswered:
            exchange.keep_alive = False
        if not unanswered:
            self.close()

    def _unanswered(self) -> list[Exchange]:
        current = self._answering
        return [*([] if current is None else [current]), *self._inbound.queue]

    def close(self) -> None:
        """Close, once the client has read what was written, within `write_stall_s`."""
        self._finish()
        self._transport.close()

    def _finish(self) -> None:
        self._stop()
        self._flush_last()

    def _stop(self) -> None:
        self._ignores_input = self._closing = True
        self._drop_pending()

    def _drop_pending(self) -> None:
        self._unparsed, self._parsed = b"", 0
        self._inbound.stop()
        if self._held:
            held = self._held_by_answering()
            self._shared.incoming.release(self._source, self._held - held)
            self._held = held

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
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
            self._answer_queued(just_read=True)
        if inbound.queue or self._unparsed:
            self._limit_read_ahead(len(data))

    def _refuse_from_here(self, refusal: WeirError, data: bytes) -> int:
        """Ignore all further input. The refusal is sent after the answers before it."""
        self._ignores_input = True
        self._refusal = refusal
        return len(data)

    def _parse(self) -> None:
        """Parse piece by piece, within the bounds of a step. While a rest stays unparsed, reading is paused."""
        inbound, data, at = self._inbound, self._unparsed, self._parsed
        size, room = len(data), MAX_ANSWERS_PER_STEP if self._answering is None else MAX_PIPELINED + 1
        try:
            for _ in range(MAX_PIECES_PER_STEP):
                if at == size or len(inbound.queue) >= room:
                    break
                at = inbound.take(data, at)
        except WeirError as refusal:
            at = self._refuse_from_here(refusal, data)
        self._unparsed, self._parsed = (data, at) if at < size else (b"", 0)
        if self._part_timer is not None:
            self._end_part()

    def _end_part(self) -> None:
        if self._part_timer is not None and self._timed_part != (self._inbound.part, self._inbound.completed):
            self._part_timer.cancel()
            self._part_timer = None

    def _count(self) -> None:
        """Count the bytes held. Above a bound those of requests without a handler are dropped, and one refusal sent."""
        held = self._inbound.held + len(self._unparsed) + self._held_by_answering()
        if held <= self._held:
            self._shared.incoming.release(self._source, self._held - held)
            self._held = held
            return
        bound = self._shared.incoming.reserve(self._source, held - self._held)
        if bound is None:
            self._held = held
            return
        self._ignores_input = True
        self._drop_pending()
        source_text, reason = bound_text(bound, "incoming_bytes")
        message = f"too many request bytes are being received{source_text}"
        self._refusal = Refused(Outcome.NO_CAPACITY, message, reason=reason)

    def _held_by_answering(self) -> int:
        """Bytes of the body that is being answered, if it is a large one."""
        size = 0 if self._answering is None else len(self._answering.body)
        return size if size > LARGE_BODY_BYTES else 0

    def _limit_read_ahead(self, size: int) -> None:
        """Pause reading above the bounds. Below them it goes on, since only a read shows that a client disconnects."""
        queue = self._inbound.queue
        if queue and (self._answering is not None or queue[0].whole):
            self._pipelined_bytes += size
        if self._unparsed or self._pipelined_bytes > MAX_PIPELINED_BYTES or len(queue) > MAX_PIPELINED:
            self._reading = False
            self._transport.pause_reading()

    def _answer_queued(self, *, just_read: bool = False) -> None:
        """Start the complete requests in order until one takes its time, then wait for what is still arriving.

        `just_read`: their last bytes have just been read, so they may have waited in the kernel and nowhere else.
        """
        queue = self._inbound.queue
        self._starting = True
        for _ in range(MAX_ANSWERS_PER_STEP):
            if self._answering is not None or self._closing or not queue or not queue[0].whole:
                break
            exchange = queue.popleft()
            if just_read and (now := self._loop.time()) >= self._shared.arrivals.ask_at:
                exchange.unread_s = self._unread_s(now)
            self._start(exchange)
        else:
            self._starting = False
            self._loop.call_soon(self._run_step, self._answer_queued)
            return
        self._starting = False
        if (queue or self._held) and not self._closing:
            self._count()
        if self._answering is None and not self._closing and not (queue and queue[0].whole):
            self._wait_for_more()

    def _unread_s(self, now: float) -> float:
        """How long the request that was just read was in the kernel; behind another one it counts from its turn."""
        unread_s = self._shared.arrivals.unread_s(self._transport.get_extra_info("socket"), now)
        return unread_s if self._inbound.completed == 1 else min(unread_s, now - self.idle_since)

    def _start(self, exchange: Exchange) -> None:
        """Run a handler's first step; the rest is a task. One that waits before `become_task` fails there with 500."""
        assert self._answering is None, f"{exchange!r} would be answered out of turn: {self!r}"
        self._answering = exchange
        handler: Coroutine[Any, Any, None] = (
            self._shared.app.handle(exchange)
            if exchange.refusal is None
            else self._answer_refusal(exchange, exchange.refusal)
        )
        try:
            handler.send(None)
        except StopIteration:
            return
        exchange.task = task = asyncio.Task(handler, loop=self._loop, name=exchange.id)  # no name is made up
        self._shared.tasks[task] = None

    def _wait_for_more(self) -> None:
        """Everything parsed has been answered: refuse, parse further, or resume reading."""
        if self._refusal is not None:
            self._send_refusal(self._refusal)
            return
        if self._unparsed:
            self._parse()
            self._loop.call_soon(self._run_step, self._answer_queued)
            return
        self._pipelined_bytes = 0
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._inbound.part:
            self._time_part(self._inbound.part)

    def _time_part(self, part: str) -> None:
        """Start the timer of a part, once: a byte a minute must not extend it."""
        if self._inbound.asks_to_continue:
            self._inbound.may_continue()
            self.send(CONTINUE)
        if self._part_timer is None:
            limits = self._shared.limits
            self._timed_part = (part, self._inbound.completed)
            self._part_timer = self._loop.call_later(
                limits.headers_s if part is HEAD else limits.body_s, self._run_step, self._part_timed_out
            )

    def _part_timed_out(self) -> None:
        self._part_timer = None
        part, limits = self._inbound.part, self._shared.limits
        if not part:
            self.close()  # no byte of a request has arrived, so there is nothing to answer
            return
        seconds = limits.headers_s if part is HEAD else limits.body_s
        self._ignores_input = True
        self._refusal = BadInput(f"the {part} took longer than {seconds:g} s", status=408, code="request_timeout")
        self._answer_queued()

    def _check_idle(self) -> None:
        """Close a connection that has been idle for `idle_timeout_s`; check any other again later."""
        self._idle_timer = None
        left_s = self._shared.idle_timeout_s - (self._loop.time() - self.idle_since)
        if self._answering is not None or self._inbound.part or self._inbound.queue:
            left_s = max(left_s, 1.0)
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._run_step, self._check_idle)
        else:
            self.close()

    # The end of an answer

    def answered(self, exchange: Exchange) -> None:
        self._answering = None
        if self._held:
            self._count()
        if not exchange.keep_alive:
            self._linger() if self._refusal is not None else self.close()
            return
        self.idle_since = self._loop.time()
        self._shared.connections.move_to_end(self)
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._shared.idle_timeout_s, self._run_step, self._check_idle)
        if not self._starting and (self._pipelined_bytes or self._unparsed or self._inbound.part or self._refusal):
            self._loop.call_soon(self._run_step, self._answer_queued)

    def ended(self, exchange: Exchange) -> None:
        if exchange.task is not None:
            self._shared.tasks.pop(exchange.task, None)
            exchange.task = None
        if self._answering is exchange:
            self.close()  # the client must not take an answer without its end for a whole one

    def _send_refusal(self, refusal: WeirError) -> None:
        """Refuse everything from here on, and close."""
        self._stop()
        self._refusal = refusal
        exchange = Exchange(self, "", "", [])
        shared = self._shared
        exchange.id, exchange.always, exchange.keep_alive = shared.new_id(8), shared.app.always, False
        exchange.refuse_now(refusal)
        self._shared.refused(refusal, exchange.id)

    async def _answer_refusal(self, exchange: Exchange, refusal: WeirError) -> None:
        """Answer what a head check refused, in place of the app. The connection stays open."""
        exchange.id, exchange.always = self._shared.new_id(8), self._shared.app.always
        try:
            await exchange.refuse(refusal)
        finally:
            exchange.ended()
        self._shared.refused(refusal, exchange.id)

    def _linger(self) -> None:
        """Close so that the refusal arrives: unread input would make the kernel reset the connection and discard it."""
        self._finish()
        if self._transport.can_write_eof():  # TLS has no half-closed connections
            self._transport.write_eof()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._part_timer is not None:
            self._part_timer.cancel()
        self._part_timer = self._loop.call_later(LINGER_S, self._transport.close)
