"""One request and its answer on a connection: uvicorn's cycle, with one write where it has two.

uvicorn writes the head of an answer and its body apart. On loopback a write is a system call that runs the whole TCP
path, the receiver's wake-up included, and it is the largest single cost of a small answer: so the head waits here for
the first piece of the body (ASGI lets a server do that), and both leave together, through the outbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from services.runtime.outbox import Outbox

_BODILESS = (204, 304)
_LOGGER = logging.getLogger("uvicorn.error")


class Cycle(RequestResponseCycle):
    """`send` of ASGI, for HTTP/1.1."""

    def __init__(
        self,
        scope: Any,
        transport: asyncio.Transport,
        flow: FlowControl,
        outbox: Outbox,
        *,
        default_headers: list[tuple[bytes, bytes]],
        expect_100_continue: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
    ) -> None:
        # As uvicorn's own, set here rather than passed through it: this is made for every request.
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.logger = _LOGGER
        self.default_headers = default_headers
        self.message_event = asyncio.Event()
        self.on_response = on_response
        self.disconnected = False
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expect_100_continue
        self.body = bytearray()
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding: bool | None = None
        self._outbox = outbox
        self._body_taken = False
        self._head: list[bytes] | None = None
        self._length: int | None = None

    async def receive(self) -> Any:
        """The body, which is whole before the application starts; then the client's leaving, as uvicorn tells it."""
        if self._body_taken:
            return await super().receive()
        self._body_taken = True
        return {"type": "http.request", "body": bytes(self.body), "more_body": False}

    async def send(self, message: Any) -> None:
        """Take a start or a body message; waits while the client reads slower than we write."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        message = cast(MutableMapping[str, Any], message)
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._body(message.get("body", b""), message.get("more_body", False))

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self.response_started:
            raise RuntimeError("an answer was started twice")
        self.response_started = True
        lines = [*self.default_headers, *headers]
        for name, value in lines:
            if name == b"content-length":
                self._length = int(value)
        head = [STATUS_LINE[status], *[b"%s: %s\r\n" % line for line in lines]]
        if b"".join(head).count(b"\n") != len(head):
            raise RuntimeError("a header holds a line break")
        if status in _BODILESS:
            self._length = 0
        self.chunked_encoding = self._length is None and self.scope["method"] != "HEAD"
        if self.chunked_encoding:
            head.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"\r\n")
        self._head = head

    def _body(self, body: bytes, more: bool) -> None:
        if not self.response_started or self.response_complete:
            raise RuntimeError("a body was sent before its head or after its end")
        out = self._head or []
        self._head = None
        if self.scope["method"] == "HEAD":
            pass
        elif self.chunked_encoding:
            if body:
                out += (b"%x\r\n" % len(body), body, b"\r\n")
            if not more:
                out.append(b"0\r\n\r\n")
        else:
            self._spend(len(body), more)
            out.append(body)
        if out:
            self._outbox.write(self.transport, b"".join(out))
        if not more:
            self._complete()

    def _spend(self, size: int, more: bool) -> None:
        left = (self._length or 0) - size
        if left < 0 or (left > 0 and not more):
            raise RuntimeError("the body is not as long as its Content-Length says")
        self._length = left

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self._outbox.flush()
            self.transport.close()
        self.on_response()
