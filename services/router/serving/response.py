"""The response to the client: a whole answer, a stream, or a failure, each unmistakable for another.

A stream's head is sent with the first output, so that a failure before it has its own status. KEEP_ALIVE_S after the
dispatch it is sent without output, and comments keep the connection alive, as the WHATWG's section on server-sent
events advises. After the head a failure is an `error` event, and a failed stream has no `[DONE]`.
"""

from __future__ import annotations

import asyncio

from services.router.request import InferenceRequest
from services.router.serving.serializers import passed_through, serializer_for
from services.router.serving.timing import headers, timing
from services.router.upstreams.call import StartedStream, Whole
from services.runtime.clock import unix_seconds
from services.runtime.errors import WeirError, problem
from services.runtime.http import Exchange
from services.runtime.upstream import UpstreamError

KEEP_ALIVE_S = 5.0
COMMENT = b": keep-alive\n\n"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
NO_CACHE = (b"cache-control", b"no-cache")


async def send_whole(exchange: Exchange, request: InferenceRequest, answer: Whole, now: float) -> None:
    """Send an answer in one piece: the worker's own bytes if the worker speaks the client's format."""
    body = answer.raw
    parsed = request.parsed
    if body is None or parsed.body is None:
        body = serializer_for(parsed.format).whole(request, answer, now, unix_seconds())
    await exchange.reply(200, body, headers=headers(request, now))


async def open_stream(exchange: Exchange, request: InferenceRequest) -> None:
    """Send the head of a stream, once."""
    if not exchange.started:
        await exchange.start(200, EVENT_STREAM, [NO_CACHE, *headers(request, None)])


async def send_stream(exchange: Exchange, request: InferenceRequest, started: StartedStream, silence_s: float) -> None:
    """Send a stream to its end. Raises UpstreamError if it is cut, TimeoutError if it ends past the deadline."""
    loop, timer, serializer = asyncio.get_running_loop(), request.timer, serializer_for(request.parsed.format)
    created = unix_seconds()
    stream, delta = started.stream, started.first
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
    await exchange.end(last)  # in one write: nothing can fail after `[DONE]`


async def send_failure(exchange: Exchange, failure: WeirError) -> None:
    """Send a failure: with its status before the head, as an event after it."""
    if exchange.gone:
        return
    if not exchange.started:
        await exchange.refuse(failure)
        return
    await exchange.end(_error_event(failure))


def send_failure_now(exchange: Exchange, failure: WeirError) -> None:
    """Send a failure from outside its handler, which goes on without a client."""
    if not exchange.started:
        exchange.refuse_now(failure)
    exchange.let_go(_error_event(failure))


def _error_event(failure: WeirError) -> bytes:
    _, _, body = problem(failure)
    return b"event: error\ndata: " + body + b"\n\n"


class SseKeepAlive:
    """Keeps a stream's connection alive before the first output. Starts by itself; always call `stop`."""

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
        """Stop: the first output has arrived, or never will."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
