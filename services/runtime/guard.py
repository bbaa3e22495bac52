"""The front guard: what a socket may send, and how slowly, before any handler runs.

uvicorn by itself accepts a 2 MB header and a 20 MB body, keeps a silent connection for ever, and blocks a handler for
ever on a client that never reads. This protocol bounds all of it, and hands the application a request only when its
body is complete, so a slow upload holds a socket and never a handler:

    bytes and count of headers, length of the URL        431, 414
    bytes of the body, declared or chunked; chunks       413
    Content-Encoding                                     415: a compressed body could not be bounded
    time to send the headers, then the body              408 and close
    time without a request on an open connection         close
    time a client may refuse to read                     abort
    connections                                          429 and close

Timers are armed only for a request that did not arrive whole, so the common request pays for none of this.
A client that leaves is reported at once to whoever asked (`Peer`), for streamed and plain answers alike.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.core.outcome import Outcome
from services.runtime.cycle import Cycle
from services.runtime.errors import BadInput, Refused, WeirError, problem
from services.runtime.outbox import Outbox
from services.runtime.peer import PEER_EXTENSION, Peer, peer_of

CHECKED_HEADERS = frozenset({b"content-length", b"content-encoding", b"expect"})
LINGER_S = 1.0  # for a client to read why it was refused while it still sends


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Every bound of the front, in bytes and seconds."""

    header_bytes: int = 16_384
    header_count: int = 100
    url_bytes: int = 8_192
    body_bytes: int = 1_048_576
    chunk_count: int = 16_384
    headers_s: float = 10.0
    body_s: float = 30.0
    write_stall_s: float = 10.0
    connections: int = 4096


class _RefusedRequest(Exception):
    """Carries a refusal out of the parser's callbacks."""

    def __init__(self, error: WeirError) -> None:
        self.error = error


def _bad(status: int, code: str, message: str) -> _RefusedRequest:
    return _RefusedRequest(BadInput(message, status=status, code=code))


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with bounds. One instance per connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: GuardLimits,
        outbox: Outbox,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = limits
        self._outbox = outbox
        self._receiving_head = True
        self._head_bytes = 0
        self._chunks = 0
        self._resting_since = 0.0
        self._pending_refusal: _RefusedRequest | None = None
        self._parked: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._complete: list[tuple[RequestResponseCycle, ASGI3Application]] = []
        self._receive_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(Refused(Outcome.YIELD, "too many open connections", reason="connections"))
            self.transport.close()  # there is no room to linger
            return
        self._arm_receive_timer(self.limits.headers_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_receive_timer()
        self._disarm_stall_timer()
        self._unset_keepalive_if_required()
        if self._lingering is not None:
            self._lingering.cancel()
        self._parked = None
        # Behind an unfinished answer stand the pipelined requests, whose client has gone as well.
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        current = self.cycle
        super().connection_lost(exc)
        for cycle in [*waiting, current]:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                peer_of(cycle.scope).lost()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None or self.transport.is_closing():
            return
        if self._receiving_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # declined, as RFC 9110 section 7.8 allows: answered in HTTP/1.1, then closed
        except httptools.HttpParserError:
            refusal = self._pending_refusal
            self._refuse(refusal.error if refusal else BadInput("this is not a valid HTTP/1.1 request"))
            return
        while self._complete:  # outside the parser's callbacks, which a handler must not run in
            self._run(*self._complete.pop(0))
        if self._receiving_head and self._head_bytes > self.limits.header_bytes:
            self._refuse(_bad(431, "headers_too_large", self._header_limit()).error)
        elif self._receiving_head and self._head_bytes:
            self._arm_receive_timer(self.limits.headers_s)
        elif self._parked is not None:
            self._arm_receive_timer(self.limits.body_s)

    def _header_limit(self) -> str:
        return f"the headers exceed {self.limits.header_bytes} bytes"

    def _fail(self, refusal: _RefusedRequest) -> None:
        """Stop the parser from inside one of its callbacks; `data_received` then refuses."""
        self._pending_refusal = refusal
        raise refusal

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {PEER_EXTENSION: Peer()}  # type: ignore[dict-item]  # an object, where ASGI has dicts
        self._receiving_head = True
        self._chunks = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.url_bytes:
            self._fail(_bad(414, "url_too_long", f"the URL exceeds {self.limits.url_bytes} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._check_headers()
        self._receiving_head = False
        self._head_bytes = 0
        self._disarm_receive_timer()
        try:
            self._begin_cycle()
        except (UnicodeDecodeError, httptools.HttpParserInvalidURLError):
            self._fail(_bad(400, "bad_request", "the request target is not a valid URL"))
        if self.expect_100_continue and not self.pipeline:
            self._outbox.flush()
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.cycle.waiting_for_100_continue = False

    def _begin_cycle(self) -> None:
        """As uvicorn's, without upgrades, and with a cycle that writes once."""
        scope = self.scope
        http_version = self.parser.get_http_version()
        scope["http_version"] = http_version
        scope["method"] = self.parser.get_method().decode("ascii")
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        unanswered = self.cycle is not None and not self.cycle.response_complete
        self.cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self._outbox,
            default_headers=self.server_state.default_headers,
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if unanswered:  # pipelined: answered in its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        else:
            self._start_asgi_task(self.cycle, self.app)

    def _check_headers(self) -> None:
        if len(self.headers) > self.limits.header_count:
            self._fail(_bad(431, "headers_too_large", f"more than {self.limits.header_count} headers"))
        for name, value in self.headers:
            if name not in CHECKED_HEADERS:
                continue
            if name == b"content-length" and (not value.isdigit() or int(value) > self.limits.body_bytes):
                self._fail(_bad(413, "request_too_large", self._body_limit()))
            elif name == b"content-encoding" and value.lower() != b"identity":
                self._fail(_bad(415, "unsupported_encoding", "compressed bodies are not accepted"))
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
        if self._head_bytes > self.limits.header_bytes and self._size_of_headers() > self.limits.header_bytes:
            self._fail(_bad(431, "headers_too_large", self._header_limit()))

    def _size_of_headers(self) -> int:
        """Without what came of the body in the same read."""
        return sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _body_limit(self) -> str:
        return f"the body exceeds {self.limits.body_bytes} bytes"

    def on_chunk_header(self) -> None:
        """A chunked body: many tiny chunks cost more than their bytes."""
        self._chunks += 1
        if self._chunks > self.limits.chunk_count:
            self._fail(_bad(413, "request_too_large", f"the body has more than {self.limits.chunk_count} chunks"))

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > self.limits.body_bytes:
            self._fail(_bad(413, "request_too_large", self._body_limit()))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start the handler only when the whole body is here."""
        if cycle.more_body:
            self._parked = (cycle, app)
        else:
            self._run(cycle, app)  # a pipelined one, whose turn it is

    def _run(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start the handler at once, as Python 3.12's eager tasks do: one that never waits never needs a task.

        A refusal is such a handler. One that does wait gives the future it waits for, or nothing (`become_task`).
        """
        handler = cycle.run_asgi(app)
        try:
            waits_for = handler.send(None)
        except StopIteration:
            return
        if waits_for is None:
            self._go_on(handler)
        else:
            waits_for._asyncio_future_blocking = False  # what a task does when it takes a future over
            waits_for.add_done_callback(lambda _: self._go_on(handler))

    def _go_on(self, handler: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(handler)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._receiving_head = True
        self._head_bytes = 0
        if self._parked is not None:
            self._disarm_receive_timer()
            cycle, app = self._parked
            self._parked = None
            self._complete.append((cycle, app))

    def on_response_complete(self) -> None:
        """Turn to the next pipelined request, or rest. One timer serves every rest of a connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            if self._parked is not None:  # its body had to wait behind the answer: now it has its time to come
                self._arm_receive_timer(self.limits.body_s)
            return
        self._resting_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._arm_rest_timer(self.timeout_keep_alive)

    def _arm_rest_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has rested long enough; look again later at one that has not."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing():
            return
        busy = self._parked is not None or self._head_bytes > 0 or not self.cycle.response_complete
        left = self.timeout_keep_alive - (self.loop.time() - self._resting_since)
        if busy or left > 0:
            self._arm_rest_timer(max(left, 1.0))
        else:
            self.transport.close()

    # Writing

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.write_stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._disarm_stall_timer()
        super().resume_writing()

    # Timers and refusals

    def _arm_receive_timer(self, seconds: float) -> None:
        """Once per stage: a byte a minute must not push the limit back."""
        if self._receive_timer is None:
            self._receive_timer = self.loop.call_later(seconds, self._too_slow)

    def _disarm_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _disarm_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _too_slow(self) -> None:
        self._receive_timer = None
        if self._receiving_head and self._head_bytes == 0:
            self.transport.close()  # nothing was asked: nothing to answer
            return
        part = "headers" if self._receiving_head else "body"
        seconds = self.limits.headers_s if self._receiving_head else self.limits.body_s
        self._refuse(_bad(408, "request_timeout", f"the {part} took longer than {seconds:g} s").error)

    def _refuse(self, error: WeirError) -> None:
        """Answer from here and close. An answer already under way is not mixed with another: just close."""
        self._disarm_receive_timer()
        unfinished = self.cycle is not None and not self.cycle.response_complete and self._parked is None
        self._parked = None
        self._outbox.flush()
        if not unfinished and not self.transport.is_closing():
            status, headers, body = problem(error)
            headers += [(b"content-type", b"application/json"), (b"connection", b"close")]
            headers.append((b"x-request-id", secrets.token_hex(8).encode("ascii")))
            headers.append((b"content-length", b"%d" % len(body)))
            lines = [STATUS_LINE[status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body]
            self.transport.write(b"".join(lines))
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close so that the refusal arrives: what the client is still sending would make the kernel reset it away."""
        self.transport.write_eof()
        self._lingering = self.loop.call_later(LINGER_S, self.transport.close)


def guarded(limits: GuardLimits) -> type[asyncio.Protocol]:
    """The protocol factory that uvicorn's `Config(http=...)` takes."""
    return functools.partial(GuardedProtocol, limits=limits, outbox=Outbox())  # type: ignore[return-value]  # called as uvicorn calls a class
