"""Telling the client: a whole answer, a stream, or a failure, each so that it cannot be taken for another.

The head of a stream goes out with the first output, so that until then a failure has its own status. A client that has
heard nothing for a while cannot tell a slow worker from a dead line, and proxies between give up: so five seconds
after the dispatch the head goes out by itself, and comments keep the line awake (as the WHATWG's section on
server-sent events advises). From then on a failure is an `error` event, and a stream that failed has no `[DONE]`.
"""

from __future__ import annotations

import asyncio

from services.router.observing.life import Life
from services.router.serving.surfaces import Surface, passed_through
from services.router.upstreams.call import Begun, Call, Whole
from services.runtime.clock import unix_seconds
from services.runtime.errors import WeirError, problem
from services.runtime.http import Exchange
from services.runtime.upstream import UpstreamError

AWAKE_S = 5.0
COMMENT = b": keep-alive\n\n"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
NO_CACHE = (b"cache-control", b"no-cache")


async def tell_whole(exchange: Exchange, surface: Surface, call: Call, answer: Whole, life: Life, now: float) -> None:
    """An answer in one piece: the worker's own words where it speaks the client's format."""
    body = answer.raw
    if body is None or call.asked.body is None:
        body = surface.whole(call, answer, life, now, unix_seconds())
    await exchange.reply(200, body, headers=life.headers(now))


async def open_stream(exchange: Exchange, life: Life) -> None:
    """Send the head of a stream, once."""
    if not exchange.started:
        await exchange.start(200, EVENT_STREAM, [NO_CACHE, *life.headers(None)])


async def tell_stream(
    exchange: Exchange, surface: Surface, call: Call, begun: Begun, life: Life, silence_s: float
) -> None:
    """A stream, from its first output to its end. Raises UpstreamError where it is cut, TimeoutError where late."""
    loop, alarm = asyncio.get_running_loop(), life.alarm
    created = unix_seconds()
    stream, delta = begun.stream, begun.first
    await open_stream(exchange, life)
    head = surface.head(call, created) if delta is None or delta.raw is None else b""
    if head:
        await exchange.write(head)
    while delta is not None:
        life.pieces += 1
        if alarm is not None:
            alarm.telling = True
        await exchange.write(surface.delta(call, delta, created) if delta.raw is None else delta.raw)
        if alarm is not None:
            alarm.telling, alarm.limit = False, loop.time() + silence_s
        delta = await stream.next()
    if stream.end is None:
        raise UpstreamError("the stream has no end")
    now = loop.time()
    if now > call.deadline_at:
        raise TimeoutError
    life.end = stream.end
    if stream.tail:
        last = passed_through(stream.tail, life.timing(now))
    else:
        last = surface.last(call, stream.end, life, now, created)
    await exchange.end(last)  # in one step: after `[DONE]` nothing can fail any more


async def tell_failure(exchange: Exchange, failure: WeirError) -> None:
    """Before the head a failure has its status; after it, it is an event."""
    if exchange.gone:
        return
    if not exchange.started:
        await exchange.refuse(failure)
        return
    await exchange.end(_error_event(failure))


def tell_failure_now(exchange: Exchange, failure: WeirError) -> None:
    """The same from outside its handler, which goes on and is heard no more."""
    if not exchange.started:
        exchange.refuse_now(failure)
    exchange.let_go(_error_event(failure))


def _error_event(failure: WeirError) -> bytes:
    _, _, body = problem(failure)
    return b"event: error\ndata: " + body + b"\n\n"


class Awake:
    """Keeps the line of a stream awake while its worker has said nothing. Begins by itself; `stop` it in any case."""

    __slots__ = ("_exchange", "_life", "_task", "_timer")

    def __init__(self, exchange: Exchange, life: Life) -> None:
        self._exchange = exchange
        self._life = life
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(AWAKE_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._comment())

    async def _comment(self) -> None:
        await open_stream(self._exchange, self._life)
        while True:
            await self._exchange.write(COMMENT)
            await asyncio.sleep(AWAKE_S)

    def stop(self) -> None:
        """The worker has spoken, or never will. From here on no comment is written: one that waits to be never will."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
