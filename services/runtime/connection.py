"""One client's connection: how slowly it may send, in which order it is answered, and the way out.

    time to send the headers, then the body              408 and close
    time without a request on an open connection         close
    time a client may refuse to read                     abort
    connections                                          429 and close

Requests are answered in the order in which they came (RFC 9112 section 9.3.2), and a refusal by the guard waits for
its turn as well. While an answer is under way nothing is timed, since the client may be waiting for it. Timers are
armed only for a request that did not arrive whole, so the common request pays for none of this.

A handler starts in the turn of the loop in which its request arrives, as Python 3.12's eager tasks do: one that never
waits, such as a refusal, never needs a task. A client that leaves is reported at once to whoever asked, for streamed
and plain answers alike.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused, WeirError
from services.runtime.framing import CONTINUE
from services.runtime.guard import HEAD, GuardLimits, Inbound
from services.runtime.http import App, Exchange, HeadCheck, become_task
from services.runtime.outbox import Outbox

LINGER_S = 1.0  # for a client to read why it was refused while it still sends
ANSWERS_A_TURN = 32  # a long pipeline must not keep the other connections waiting
MAX_BEHIND = 16  # requests that wait behind an answer, and their bytes, until reading stops; one read more may come
MAX_BEHIND_BYTES = 65_536


def _nobody_counts(refusal: WeirError, id: str) -> None:
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
    refused: Callable[[WeirError, str], None] = _nobody_counts
    checks: tuple[HeadCheck, ...] = ()
    outbox: Outbox = field(default_factory=Outbox)
    connections: set[Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    date_line: bytes = b""


class Connection(asyncio.Protocol):
    """HTTP/1.1 with one client; the `Wire` of its exchanges.

    An exchange stands in the inbound line from its head on, is `_answering` from its handler's start until its answer
    is complete, and then no longer concerns the connection.
    """

    def __init__(self, shared: Shared) -> None:
        self.behind = False
        self._shared = shared
        self._outbox = shared.outbox
        self._loop = asyncio.get_running_loop()
        self._inbound = Inbound(shared.limits, self, shared.checks)
        self._answering: Exchange | None = None
        self._refusal: WeirError | None = None  # told when what came before it is answered
        self._deaf = False  # what still comes is not looked at
        self._over = False  # nothing more is answered
        self._turning = False
        self._reading = True
        self._behind_bytes = 0
        self._writable = asyncio.Event()
        self._resting_since = 0.0
        self._timed = ("", 0)
        self._part_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "over" if self._over else "deaf" if self._deaf else "open"
        arriving = self._inbound.part or "nothing"
        return f"<Connection {state}, answering {self._answering}, {len(self._inbound.line)} behind, {arriving} comes>"

    # The connection itself

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self._transport = transport
        self._shared.connections.add(self)
        if len(self._shared.connections) > self._shared.limits.connections:
            self._tell(Refused(Outcome.YIELD, "too many open connections", reason="connections"))
            self.close()  # there is no room to linger
            return
        self._part_timer = self._loop.call_later(self._shared.limits.headers_s, self._too_slow)

    def eof_received(self) -> None:
        """The client has closed, or its half: the two look the same, and whoever works for it is told now.

        It still gets what has been sent, however slowly it reads that.
        """
        self._deaf = self._over = True
        self._outbox.flush()
        for exchange in self._unanswered():
            exchange.lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = self._over = True
        self._shared.connections.discard(self)
        for timer in (self._part_timer, self._rest_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        unanswered = self._unanswered()
        self._answering = None
        self._inbound.stop()
        self.behind = False
        self._writable.set()
        for exchange in unanswered:
            exchange.lost()

    def last_requests(self, checks: tuple[HeadCheck, ...]) -> None:
        """The service will leave: what is asked already is answered, and the next answer after it is the last."""
        self._inbound.recheck(checks)
        unanswered = self._unanswered()
        if unanswered and not unanswered[-1].started:
            unanswered[-1].keep_alive = False

    def leave(self) -> None:
        """The service drains: close, or say with the answers under way that they are the last."""
        unanswered = self._unanswered()
        for exchange in unanswered:
            exchange.keep_alive = False
        if not unanswered:
            self.close()

    def close(self) -> None:
        """Close, after what has been written."""
        self._deaf = self._over = True
        self._outbox.flush()
        self._transport.close()

    def _unanswered(self) -> list[Exchange]:
        current = self._answering
        return [*([] if current is None else [current]), *self._inbound.line]

    # The way in

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        inbound = self._inbound
        try:
            inbound.feed(data)
        except WeirError as refusal:
            self._deaf = True
            self._refusal = refusal
        if self._part_timer is not None and self._timed != (inbound.part, inbound.completed):
            self._part_timer.cancel()
            self._part_timer = None
        if self._answering is None:
            self._turn()
        if inbound.line and (self._answering is not None or inbound.line[0].whole):
            self._hold_back(len(data))

    def _hold_back(self, size: int) -> None:
        """More came than is being answered. Reading goes on for a while: only who reads notices a client's leaving."""
        self._behind_bytes += size
        if self._behind_bytes > MAX_BEHIND_BYTES or len(self._inbound.line) > MAX_BEHIND:
            self._reading = False
            self._transport.pause_reading()

    def _turn(self) -> None:
        """Answer what is here, in order, until an answer takes its time; then see to what is still coming."""
        line = self._inbound.line
        self._turning = True
        for _ in range(ANSWERS_A_TURN):
            if self._answering is not None or self._over or not line or not line[0].whole:
                break
            self._start(line.popleft())
        else:
            self._loop.call_soon(self._turn)
        self._turning = False
        if self._answering is None and not self._over and not (line and line[0].whole):
            self._wait_for_more()

    def _start(self, exchange: Exchange) -> None:
        """Start a handler at once; one that does not end at once goes on as a task.

        What it waits for is not looked at: one that waits before `become_task` fails in its task, and is answered 500.
        """
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
        self._shared.tasks.add(task)

    def _wait_for_more(self) -> None:
        """Everything that is here has been answered."""
        if self._refusal is not None:
            self._tell(self._refusal)
            return
        self._behind_bytes = 0
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if self._inbound.part:
            self._see_to(self._inbound.part)

    def _see_to(self, part: str) -> None:
        """Give what has begun to come its time, once: a byte a minute must not push the limit back."""
        if self._inbound.asks_to_continue:
            self._inbound.may_continue()
            self.send(CONTINUE)
        if self._part_timer is None:
            limits = self._shared.limits
            self._timed = (part, self._inbound.completed)
            self._part_timer = self._loop.call_later(
                limits.headers_s if part is HEAD else limits.body_s, self._too_slow
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
            self._rest_timer = self._loop.call_later(left, self._rested)
        else:
            self.close()

    # The way out: what an exchange asks of its wire

    @property
    def date_line(self) -> bytes:
        return self._shared.date_line

    def send(self, data: bytes) -> None:
        self._outbox.write(self._transport, data)

    async def until_read(self) -> None:
        await become_task()
        while self.behind:
            await self._writable.wait()

    def answered(self, exchange: Exchange) -> None:
        self._answering = None
        if not exchange.keep_alive:
            self._linger() if self._refusal is not None else self.close()
            return
        self._resting_since = self._loop.time()
        if self._rest_timer is None:
            self._rest_timer = self._loop.call_later(self._shared.idle_timeout_s, self._rested)
        if not self._turning and (self._behind_bytes or self._inbound.part or self._refusal):
            self._loop.call_soon(self._turn)

    def ended(self, exchange: Exchange) -> None:
        if exchange.task is not None:
            self._shared.tasks.discard(exchange.task)
            exchange.task = None
        if not exchange.complete and not exchange.gone:
            self.close()  # an answer without its end must not be taken for whole

    def pause_writing(self) -> None:
        self.behind = True
        self._writable.clear()
        self._stall_timer = self._loop.call_later(self._shared.limits.write_stall_s, self._transport.abort)

    def resume_writing(self) -> None:
        self.behind = False
        self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _tell(self, refusal: WeirError) -> None:
        """Refuse from here, and close."""
        self._deaf = self._over = True
        self._refusal = refusal
        self._inbound.line.clear()
        exchange = Exchange(self, "", "", [])
        exchange.id, exchange.always, exchange.keep_alive = secrets.token_hex(8), self._shared.app.always, False
        exchange.refuse_now(refusal)
        self._shared.refused(refusal, exchange.id)

    async def _refuse_in_turn(self, exchange: Exchange, refusal: WeirError) -> None:
        """Answer in the place of the app what a head check refused; the connection goes on."""
        exchange.id, exchange.always = secrets.token_hex(8), self._shared.app.always
        try:
            await exchange.refuse(refusal)
        finally:
            exchange.ended()
        self._shared.refused(refusal, exchange.id)

    def _linger(self) -> None:
        """Close so that the refusal arrives: what the client is still sending would make the kernel reset it away."""
        self._deaf = self._over = True
        self._outbox.flush()
        self._transport.write_eof()
        self._part_timer = self._loop.call_later(LINGER_S, self._transport.close)
