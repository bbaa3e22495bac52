"""The front guard: bytes in, complete requests out. It bounds what a client may send before a handler runs.

    bytes and count of headers, length of the URL        431, 414
    bytes of the body, declared or chunked; chunks       413
    Content-Encoding                                     415: a compressed body could not be bounded
    Transfer-Encoding other than chunked                 501, or 400 where the body's end would be in doubt
    Host missing, empty, repeated or not a host          400 (RFC 9112 section 3.2)
    neither HTTP/1.1 nor HTTP/1.0, or ambiguous          400, by llhttp, which parses strictly
    what a head check of the listener refuses            as the check says; a large body is not read

A request is passed on when its body is complete, so a slow upload holds a socket and never a handler. Trailers are
dropped (RFC 9110 section 6.5.1). The parser gets one piece at a time, which never goes beyond the end of a head or a
body: a head and a chunked body end with an empty line, another body with its declared length. So the caller decides
how many requests a read becomes, and every byte is counted for its own request. `connection` has the time limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

from services.runtime.errors import BadInput, TooLarge, WeirError
from services.runtime.http import Exchange, HeadCheck
from services.runtime.requesttarget import is_host, target_of
from services.runtime.wire import Wire

NOTHING, HEAD, BODY = "", "headers", "body"  # the part of a request that is arriving
SMALL_BODY_BYTES = 16_384  # up to which the body of a refused request is read, so that its connection stays open
CHUNK_LINES_BYTES = 12  # around a chunk: its size, two line ends; more than that is padding
REQUEST_BYTES = 1024  # what a request costs beside its body while it waits: its headers and its `Exchange`
MAX_LINE_END_BYTES = 512  # before a request, skipped in one piece
EMPTY_LINE = b"\r\n\r\n"
HTTP_1_1, HTTP_1_0 = b" HTTP/1.1", b" HTTP/1.0"  # how a request line ends


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The bounds of a listener; `source_share` is the share of connections and incoming bytes for one source."""

    header_bytes: int = 16_384
    header_count: int = 100
    url_bytes: int = 8_192
    body_bytes: int = 1_048_576
    chunk_count: int = 16_384
    headers_s: float = 10.0
    body_s: float = 30.0
    write_stall_s: float = 10.0
    connections: int = 4096
    incoming_bytes: int = 67_108_864
    source_share: float = 1.0

    @property
    def raw_body_bytes(self) -> int:
        """The most bytes of a body as it is sent: chunks with their lines, and trailers."""
        return self.body_bytes + self.chunk_count * CHUNK_LINES_BYTES + self.header_bytes

    @property
    def connections_per_source(self) -> int:
        """The most connections of one source; at least one."""
        return max(1, int(self.connections * self.source_share))

    @property
    def incoming_bytes_per_source(self) -> int:
        """The most incoming bytes of one source; the largest request always fits."""
        return max(int(self.incoming_bytes * self.source_share), self.header_bytes + self.body_bytes + REQUEST_BYTES)


class Inbound:
    """One connection's requests, as they arrive. `queue` holds those whose head is complete, oldest first.

    `part` is the part that is arriving (NOTHING, HEAD, BODY), and `completed` counts requests; together the two
    identify a part. httptools calls the `on_*` methods.
    """

    __slots__ = (
        "_arriving",
        "_body",
        "_bytes",
        "_checks",
        "_chunks",
        "_continue",
        "_declared",
        "_expected",
        "_headers",
        "_host",
        "_id",
        "_in_trace",
        "_limits",
        "_parse",
        "_parser",
        "_protocol",
        "_refusal",
        "_tail",
        "_transfer",
        "_url",
        "_wire",
        "completed",
        "part",
        "queue",
    )

    def __init__(self, limits: GuardLimits, wire: Wire, checks: tuple[HeadCheck, ...] = ()) -> None:
        self.queue: deque[Exchange] = deque()
        self.part = NOTHING
        self.completed = 0
        self._limits = limits
        self._checks = checks
        self._wire = wire
        self._bytes = 0  # of this part so far
        self._tail = b""  # the end of the last piece: a line end may come in two reads
        self._protocol = b""  # the end of the request line
        self._arriving: Exchange | None = None
        self._body = bytearray()
        self._refusal: WeirError | None = None
        self.on_message_begin()
        self.part = NOTHING
        parser = httptools.HttpRequestParser(self)
        self._parser: Any = parser
        self._parse: Any = parser.feed_data
        # Bytes after a request with `connection: close` are ignored; by default they would be an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def take(self, data: bytes, at: int = 0) -> int:
        """Parse one piece of what was read, from `at` on, and a declared body together with its head.

        Returns where the next piece begins. Raises WeirError, after which the connection accepts no more requests.
        """
        if self.part:
            end = self._end_of_piece(data, at)
        else:
            self.part = HEAD
            end, first = data.find(EMPTY_LINE, at), data.find(b"\r\n", at)
            if end < 0 or first == at:
                self._url = self._tail = self._protocol = b""
                end = self._end_of_piece(data, at)
            else:
                self._protocol = data[first - 9 : first]
                end += 4
        self._bytes += end - at
        parse = self._parse
        try:
            parse(data[at:end])
            if end < len(data) and self.part is BODY and self._declared:
                at, end = end, min(end + self._declared, len(data))
                parse(data[at:end])
        except httptools.HttpParserUpgrade:
            self.queue[-1].keep_alive = False  # declined, as RFC 9110 section 7.8 allows: HTTP/1.1, then closed
            return len(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, AssertionError):
                raise error.__context__ from None  # an assertion of this code, not a fault of the client
            raise self._refusal or BadInput("this is not a valid HTTP/1.1 request") from None
        if self.part:
            self._bound()
        return end

    def _bound(self) -> None:
        """Raises WeirError if the incomplete part has more bytes than it may have."""
        if self.part is HEAD and self._bytes > self._limits.header_bytes:
            raise self._headers_too_large()
        if self.part is BODY and self._bytes > self._limits.raw_body_bytes:
            raise TooLarge(f"the body's chunks and trailers exceed {self._limits.raw_body_bytes} bytes")

    def _end_of_piece(self, data: bytes, at: int) -> int:
        """Where the next piece ends: not beyond the end of the part, however the reads were cut."""
        if self.part is BODY and self._declared:
            return min(at + self._missing(), len(data))
        before = self._tail[-3:]
        split = (before + data[at : at + 3]).find(EMPTY_LINE)
        if split >= 0:
            end = at - len(before) + split + len(EMPTY_LINE)
        else:
            found = data.find(EMPTY_LINE, at)
            end = len(data) if found < 0 else found + len(EMPTY_LINE)
        if self.part is HEAD and not self._protocol:
            end = self._end_of_line(data, at, end)
        self._tail = (self._tail + data[max(at, end - 10) : end])[-10:]
        return end

    def _end_of_line(self, data: bytes, at: int, end: int) -> int:
        """Find and note the end of a request line that came in pieces. Line ends before it are a piece of their own."""
        if not self._url and data[at] in b"\r\n":
            self._tail = b""
            run = data[at : min(end, at + MAX_LINE_END_BYTES)]
            return at + len(run) - len(run.lstrip(b"\r\n"))
        first = data.find(b"\n", at, end)
        if first >= 0:
            line = self._tail + data[max(at, first - 10) : first]
            self._protocol = line.removesuffix(b"\r")[-9:] or b"?"
        return end

    def _missing(self) -> int:
        assert self._arriving is not None
        return self._declared - len(self._arriving.body) - len(self._body)

    @property
    def held(self) -> int:
        """Bytes held or expected for requests not passed on; a body counts with its declared length."""
        waiting = sum([len(exchange.body) + REQUEST_BYTES for exchange in self.queue])
        if self.part is HEAD:
            return waiting + self._bytes
        if self.part is BODY:
            return waiting + len(self._body) + (self._missing() if self._declared else 0)
        return waiting

    @property
    def asks_to_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body of the arriving request."""
        return self._continue and self.part is BODY

    def may_continue(self) -> None:
        self._continue = False

    def recheck(self, checks: tuple[HeadCheck, ...]) -> None:
        self._checks = checks

    def stop(self) -> None:
        """Drop the requests that wait, and the parser, which refers to this object."""
        self.queue.clear()
        self.part = NOTHING
        self._arriving = None
        self._body = bytearray()
        self._parser = self._parse = None

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self.part = HEAD
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._host = self._transfer = b""
        self._chunks = 0
        self._id: bytes | None = None
        self._in_trace = False
        self._continue = False
        self._expected = self._declared = 0  # bytes of the body: an upper bound, and its declared length

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes:
            message = f"the URL exceeds {self._limits.url_bytes} bytes"
            self._fail(BadInput(message, status=414, code="url_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is not None:
            return  # a trailer
        name = name.lower()
        self._headers.append((name, value))
        if name in _CHECKS:
            _CHECKS[name](self, value)

    def on_headers_complete(self) -> None:
        headers, parser = self._headers, self._parser
        if len(headers) > self._limits.header_count:
            message = f"more than {self._limits.header_count} headers"
            self._fail(BadInput(message, status=431, code="headers_too_large"))
        if self._bytes > self._limits.header_bytes:
            self._fail(self._headers_too_large())
        try:
            path, query, authority = target_of(self._url)
        except ValueError:
            self._fail(BadInput("the request target is not a valid URL"))
        method = parser.get_method().decode("ascii")
        exchange = Exchange(self._wire, method, path, headers, self._id, query, self._in_trace)
        if not parser.should_keep_alive():
            exchange.keep_alive = False
        if self._protocol != HTTP_1_1:
            self._apply_http_1_0(exchange)
        elif not self._host:
            self._fail(BadInput("an HTTP/1.1 request needs a Host header"))
        if authority is not None:
            exchange.headers = [(b"host", authority), *(each for each in headers if each[0] != b"host")]
        for check in self._checks:
            refusal = check(exchange, self._expected)
            if refusal is not None:
                exchange.refusal = refusal
                if self._expected > SMALL_BODY_BYTES:
                    self._fail(refusal)
                break
        self._arriving = exchange
        self._bytes = 0
        self.part = BODY
        self.queue.append(exchange)

    def _apply_http_1_0(self, exchange: Exchange) -> None:
        """Apply the rules of HTTP/1.0: no chunks, no `100 Continue`, closed after the answer. Reject other protocols.

        llhttp takes RTSP/1.0 and ICE/1.0 for HTTP/1.0, so the name is compared here.
        """
        if self._protocol != HTTP_1_0:
            self._fail(BadInput("only HTTP/1.1 and HTTP/1.0 are supported"))
        if self._transfer:
            self._fail(BadInput("HTTP/1.0 has no Transfer-Encoding"))  # RFC 9112 section 6.1
        exchange.may_chunk = exchange.keep_alive = self._continue = False

    def on_chunk_header(self) -> None:
        """Bound the chunks of a body: many tiny ones cost more than their bytes."""
        self._chunks += 1
        if self._chunks > self._limits.chunk_count:
            self._fail(TooLarge(f"the body has more than {self._limits.chunk_count} chunks"))

    def on_body(self, body: bytes) -> None:
        exchange = self._arriving
        assert exchange is not None
        size = len(body)
        if not exchange.body:
            exchange.body = body  # usually the whole body
        else:
            self._body += body
            size = len(exchange.body) + len(self._body)
        if size > self._limits.body_bytes:
            self._fail(self._body_too_large())

    def on_message_complete(self) -> None:
        exchange = self._arriving
        assert exchange is not None
        if self._body:
            exchange.body += self._body
            self._body = bytearray()
        exchange.whole = True
        self._arriving = None
        self._bytes = 0
        self.part = NOTHING
        self.completed += 1

    # Refusals

    def _fail(self, refusal: WeirError) -> None:
        """Stop the parser from inside one of its callbacks; `take` then raises the refusal."""
        self._refusal = refusal
        raise refusal

    def _check_length(self, value: bytes) -> None:
        digits = value.strip(b" \t")
        if not digits.isdigit() or (size := int(digits)) > self._limits.body_bytes:
            self._fail(self._body_too_large())
        self._expected = self._declared = size

    def _check_transfer(self, value: bytes) -> None:
        """Accept `chunked`, once: another coding hides the end or the content of the body (RFC 9112 section 6)."""
        codings = [coding.strip() for coding in value.lower().split(b",")]
        if codings[-1] != b"chunked" or codings.count(b"chunked") > 1:
            self._fail(BadInput("Transfer-Encoding must be `chunked`, once"))
        if len(codings) > 1:
            message = "the only supported transfer coding is `chunked`"
            self._fail(BadInput(message, status=501, code="unsupported_transfer_encoding"))
        self._transfer = value
        self._expected = self._limits.body_bytes

    def _check_host(self, value: bytes) -> None:
        if self._host or not is_host(value):
            self._fail(BadInput("exactly one Host header with a valid host name is required"))
        self._host = value

    def _check_encoding(self, value: bytes) -> None:
        if value.lower() != b"identity":
            message = "compressed bodies are not accepted"
            self._fail(BadInput(message, status=415, code="unsupported_encoding"))

    def _note_expectation(self, value: bytes) -> None:
        self._continue = value.lower() == b"100-continue"

    def _note_id(self, value: bytes) -> None:
        self._id = value

    def _note_trace(self, value: bytes) -> None:
        self._in_trace = True

    def _body_too_large(self) -> WeirError:
        return TooLarge(f"the body exceeds {self._limits.body_bytes} bytes")

    def _headers_too_large(self) -> WeirError:
        message = f"the headers exceed {self._limits.header_bytes} bytes"
        return BadInput(message, status=431, code="headers_too_large")


_CHECKS: dict[bytes, Callable[[Inbound, bytes], None]] = {
    b"host": Inbound._check_host,
    b"content-length": Inbound._check_length,
    b"transfer-encoding": Inbound._check_transfer,
    b"content-encoding": Inbound._check_encoding,
    b"expect": Inbound._note_expectation,
    b"x-request-id": Inbound._note_id,
    b"traceparent": Inbound._note_trace,
}
