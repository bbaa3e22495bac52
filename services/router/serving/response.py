"""The response to the client: a whole answer, a stream, or a failure, each so that it cannot be taken for another.

The head of a stream goes out with the first output, so that until then a failure has its own status. A client that has
received nothing for a while cannot tell a slow worker from a dead connection, and proxies between give up: so five
seconds after the dispatch the head goes out by itself, and comments keep the connection alive (as the WHATWG's section
on server-sent events advises). From then on a failure is an `error` event, and a stream that failed has no `[DONE]`.
"""

from __future__ import annotations

import asyncio

from services.router.request import InferenceRequest
from services.router.serving.serializers import passed_through, serializer_for
from services.router.serving.timing import headers, timing
from services.router.upstreams.call import Begun, Whole
from services.runtime.clock import unix_seconds
from services.runtime.errors import WeirError, problem
from services.runtime.http import Exchange
from services.runtime.upstream import UpstreamError

KEEP_ALIVE_S = 5.0
COMMENT = b": keep-alive\n\n"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
NO_CACHE = (b"cache-control", b"no-cache")


async def send_whole(exchange: Exchange, request: InferenceRequest, answer: Whole, now: float) -> None:
    """An answer in one piece: the worker's own bytes where it speaks the client's format."""
    body = answer.raw
    parsed = request.parsed
    if body is None or parsed.body is None:
        body = serializer_for(parsed.format).whole(request, answer, now, unix_seconds())
    await exchange.reply(200, body, headers=headers(request, now))


async def open_stream(exchange: Exchange, request: InferenceRequest) -> None:
    """Send the head of a stream, once."""
    if not exchange.started:
        await exchange.start(200, EVENT_STREAM, [NO_CACHE, *headers(request, None)])


async def send_stream(exchange: Exchange, request: InferenceRequest, begun: Begun, silence_s: float) -> None:
    """A stream, from its first output to its end. Raises UpstreamError where it is cut, TimeoutError where late."""
    loop, timer, serializer = asyncio.get_running_loop(), request.timer, serializer_for(request.parsed.format)
    created = unix_seconds()
    stream, delta = begun.stream, begun.first
    await open_stream(exchange, request)
    head = serializer.head(request, created) if delta is None or delta.raw is None else b""
    if head:
        await exchange.write(head)
    while delta is not None:
        request.pieces += 1
        if timer is not None:
            timer.client_writing = True
        await exchange.write(serializer.delta(request, delta, created) if delta.raw is None else delta.raw)
        if timer is not None:
            timer.client_writing, timer.limit = False, loop.time() + silence_s
        delta = await stream.next()
    if stream.end is None:
        raise UpstreamError("the stream has no end")
    now = loop.time()
    if now > request.work_until:
        raise TimeoutError
    request.end = stream.end
    if stream.tail:
        last = passed_through(stream.tail, timing(request, now))
    else:
        last = serializer.last(request, stream.end, now, created)
    await exchange.end(last)  # in one step: after `[DONE]` nothing can fail any more


async def send_failure(exchange: Exchange, failure: WeirError) -> None:
    """Before the head a failure has its status; after it, it is an event."""
    if exchange.gone:
        return
    if not exchange.started:
        await exchange.refuse(failure)
        return
    await exchange.end(_error_event(failure))


def send_failure_now(exchange: Exchange, failure: WeirError) -> None:
    """The same from outside its handler, which goes on without a client."""
    if not exchange.started:
        exchange.refuse_now(failure)
    exchange.let_go(_error_event(failure))


def _error_event(failure: WeirError) -> bytes:
    _, _, body = problem(failure)
    return b"event: error\ndata: " + body + b"\n\n"


class SseKeepAlive:
    """Keeps the connection of a stream alive before its first output. Begins by itself; `stop` it in any case."""

    __slots__ = ("_exchange", "_request", "_task", "_timer")

    def __init__(self, exchange: Exchange, request: InferenceRequest) -> None:
        self._exchange = exchange
        self._request = request
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._comment())

    async def _comment(self) -> None:
        await open_stream(self._exchange, self._request)
        while True:
            await self._exchange.write(COMMENT)
            await asyncio.sleep(KEEP_ALIVE_S)

    def stop(self) -> None:
        """The first output is here, or never comes. From here on no comment is written."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
