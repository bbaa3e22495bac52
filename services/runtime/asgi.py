"""An ASGI application behind the HTTP protocol: an `Exchange` becomes one ASGI request (ASGI 3.0, HTTP spec 2.4).

The body is complete before the handler starts, so `receive` returns one message and then waits for the disconnect. An
answer in one message has a length, any other is chunked; `send` waits for a client that reads slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from services.core.outcome import Outcome
from services.runtime.errors import place_of
from services.runtime.framing import Headers
from services.runtime.http import Exchange, become_task
from services.runtime.log import Log

Message = MutableMapping[str, Any]
Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

EXCHANGE = "weir.exchange"
"""Key of the exchange in the scope, for handlers that need more than ASGI offers."""
_OF_THE_EXCHANGE = frozenset({b"content-length", b"content-type", b"date", b"transfer-encoding", b"connection"})


class ClientLeft(OSError):
    """The client has disconnected; `send` raises an OSError, as spec 2.4 asks for."""


async def serve(application: Application, exchange: Exchange) -> None:
    """Answer one exchange with the application. Raises what the application raises, except ClientLeft."""
    scope = scope_of(exchange)
    try:
        await application(scope, _Request(exchange).receive, _Answer(exchange).send)
    except ClientLeft:
        exchange.log.setdefault("outcome", Outcome.CLIENT_GONE)
    finally:
        exchange.route = getattr(scope.get("route"), "path_format", "")


def scope_of(exchange: Exchange) -> dict[str, Any]:
    """The ASGI scope. `raw_path` is made from the decoded path, since the exchange does not keep the original."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": exchange.method,
        "scheme": exchange.scheme,
        "path": exchange.path,
        "raw_path": quote(exchange.path).encode("ascii"),
        "query_string": exchange.query,
        "root_path": "",
        "headers": exchange.headers,
        "client": None,
        "server": None,
        "state": {},
        EXCHANGE: exchange,
    }


class _Request:
    __slots__ = ("_delivered", "_exchange")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._delivered = False

    async def receive(self) -> Message:
        if not self._delivered:
            self._delivered = True
            return {"type": "http.request", "body": self._exchange.body, "more_body": False}
        gone = asyncio.Event()
        self._exchange.on_gone(gone.set)
        await gone.wait()
        return {"type": "http.disconnect"}


class _Answer:
    __slots__ = ("_content_type", "_exchange", "_headers", "_started", "_status")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._started = False  # by the application; a handler may also answer the exchange itself
        self._status = 0
        self._content_type = b""
        self._headers: Headers = ()

    async def send(self, message: Message) -> None:
        if self._exchange.gone:
            raise ClientLeft("the client has left")
        if message["type"] == "http.response.start":
            self._begin(message)
        else:
            await self._body(message.get("body", b""), more=message.get("more_body", False))

    def _begin(self, message: Message) -> None:
        headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
        self._status = message["status"]
        self._content_type = next((value for name, value in headers if name == b"content-type"), b"")
        self._headers = [header for header in headers if header[0] not in _OF_THE_EXCHANGE]

    async def _body(self, body: bytes, *, more: bool) -> None:
        exchange = self._exchange
        if exchange.started and not self._started:
            return  # an error after the handler had started its own answer, which `Service` cuts
        if self._started:
            await (exchange.write(body) if more else exchange.end(body))
            return
        self._started = True
        if more:
            await exchange.start(self._status, self._content_type, self._headers)
            if body:
                await exchange.write(body)
        else:
            await exchange.reply(self._status, body, content_type=self._content_type, headers=self._headers)


class AsgiApp:
    """The `App` of a listener whose requests are not logged one by one: metrics and operators' routes."""

    always = b""

    def __init__(self, application: Application, log: Log) -> None:
        self._application = application
        self._log = log

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request. An error of the application is answered by the application, and logged here."""
        await become_task()
        try:
            await serve(self._application, exchange)
        except Exception as error:
            self._log.error("a handler failed", path=exchange.route, traceback=place_of(error))
        finally:
            exchange.ended()
