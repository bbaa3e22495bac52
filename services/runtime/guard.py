"""The front guard: what a socket may send before any handler runs. Bytes in, requests out, no socket here.

    bytes and count of headers, length of the URL        431, 414
    bytes of the body, declared or chunked; chunks       413
    Content-Encoding                                     415: a compressed body could not be bounded
    Transfer-Encoding other than chunked                 501, or 400 where the body's end would be in doubt
    Host missing, empty, repeated or not a host          400 (RFC 9112 section 3.2)
    what is not HTTP/1.1, or not one request only        400, by llhttp, which parses strictly
    what a head check of the listener refuses            as the check says; a large body is not even read

A request is handed on when its body is complete: a slow upload holds a socket and never a handler. Trailers are
dropped (RFC 9110 section 6.5.1 allows it): what stands behind a body must not speak for the request. How slowly a
client may send, and in which order it is answered, is `connection`.

The parser is fed one piece at a time. A piece never goes beyond the end of a head or of a body: both are known before
the piece is cut, because a head and a chunked body end with an empty line, and another body with its declared length.
So one read can not become more requests than the caller wants, and every byte is charged to the request that it is of.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import httptools

from services.runtime.errors import BadInput, TooLarge, WeirError
from services.runtime.http import Exchange, HeadCheck
from services.runtime.wire import Wire

NOTHING, HEAD, BODY = "", "headers", "body"  # which part of a request is under way
SMALL_BODY_BYTES = 16_384  # of a refused request: read to its end, so that the connection can be used again
CHUNK_LINES_BYTES = 12  # around a chunk: its size, two line ends; more than that is padding
REQUEST_BYTES = 1024  # what a request costs beside its body while it waits: its headers and its `Exchange`
LINE_ENDS = 512  # before a request, that are looked at together
EMPTY_LINE = b"\r\n\r\n"
HTTP_1_1, HTTP_1_0 = b" HTTP/1.1", b" HTTP/1.0"  # how a request line ends
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]{1,255})(?::[0-9]{0,5})?")


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
    incoming_bytes: int = 67_108_864
    source_share: float = 1.0

    @property
    def raw_body_bytes(self) -> int:
        """A body as it is sent: chunks with their lines, and trailers."""
        return self.body_bytes + self.chunk_count * CHUNK_LINES_BYTES + self.header_bytes

    @property
    def connections_per_source(self) -> int:
        """How many connections one source may hold; at least one."""
        return max(1, int(self.connections * self.source_share))

    @property
    def incoming_bytes_per_source(self) -> int:
        """How many bytes of its requests may be on their way in; the largest request fits always."""
        return max(int(self.incoming_bytes * self.source_share), self.header_bytes + self.body_bytes + REQUEST_BYTES)


class Inbound:
    """One connection's requests, as they arrive. `queue` holds those whose head is here, oldest first.

    `part` is what has begun and is not complete, and `completed` counts requests: the two together tell whether a part
    is still the one that it was.
    """

    __slots__ = (
        "_arriving",
        "_body",
        "_bytes",
        "_checks",
        "_chunks",
        "_coming",
        "_continue",
        "_declared",
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
        self._bytes = 0  # of this part
        self._tail = b""  # the end of the last piece: what ends a line may come in two reads
        self._protocol = b""  # the end of the request line
        self._arriving: Exchange | None = None
        self._body = bytearray()
        self._refusal: WeirError | None = None
        self.on_message_begin()
        self.part = NOTHING
        parser = httptools.HttpRequestParser(self)
        self._parser: Any = parser
        self._parse: Any = parser.feed_data
        # What stands behind a request that closes is ignored; by default it would be an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def take(self, data: bytes, at: int = 0) -> int:
        """Parse one piece of what a socket brought, from `at` on, and a declared body with its head.

        Returns where the next piece begins. Raises WeirError, after which this connection can ask nothing more.
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
                raise error.__context__ from None  # ours, in a callback: no fault of the client's
            raise self._refusal or BadInput("this is not a valid HTTP/1.1 request") from None
        if self.part:
            self._bound()
        return end

    def _bound(self) -> None:
        """Raise for a part that is not complete and has more bytes than such a part may have."""
        if self.part is HEAD and self._bytes > self._limits.header_bytes:
            raise self._too_long_a_head()
        if self.part is BODY and self._bytes > self._limits.raw_body_bytes:
            raise TooLarge(f"the body's chunks and trailers exceed {self._limits.raw_body_bytes} bytes")

    def _end_of_piece(self, data: bytes, at: int) -> int:
        """How far the part under way goes at most: not beyond its end, wherever the reads were cut."""
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
        """Look for the end of a request line that did not come whole, and note it. Line ends before it go alone."""
        if not self._url and data[at] in b"\r\n":
            self._tail = b""
            run = data[at : min(end, at + LINE_ENDS)]
            return at + len(run) - len(run.lstrip(b"\r\n"))
        first = data.find(b"\n", at, end)
        if first >= 0:
            line = self._tail + data[max(at, first - 10) : first]
            self._protocol = line.removesuffix(b"\r")[-9:] or b"?"
        return end

    def _missing(self) -> int:
        """Bytes of a body of declared length that have not come."""
        assert self._arriving is not None
        return self._declared - len(self._arriving.body) - len(self._body)

    @property
    def held(self) -> int:
        """Bytes that are kept or expected for what has not been handed on: a body counts as long as it was declared."""
        waiting = sum([len(exchange.body) + REQUEST_BYTES for exchange in self.queue])
        if self.part is HEAD:
            return waiting + self._bytes
        if self.part is BODY:
            return waiting + len(self._body) + (self._missing() if self._declared else 0)
        return waiting

    @property
    def asks_to_continue(self) -> bool:
        """Whether the client waits for leave to send the body of the request that is arriving."""
        return self._continue and self.part is BODY

    def may_continue(self) -> None:
        """The leave has been given."""
        self._continue = False

    def recheck(self, checks: tuple[HeadCheck, ...]) -> None:
        """Judge by these from the next head on."""
        self._checks = checks

    def stop(self) -> None:
        """Nothing more is answered: let go of what waits, and of the parser, which holds this in turn."""
        self.queue.clear()
        self.part = NOTHING
        self._arriving = None
        self._body = bytearray()
        self._parser = self._parse = None

    # What the parser finds

    def on_message_begin(self) -> None:
        self.part = HEAD
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._host = self._transfer = b""
        self._chunks = 0
        self._id: bytes | None = None
        self._in_trace = False
        self._continue = False
        self._coming = self._declared = 0  # bytes of the body: at most, and if it said how many

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
        check = _CHECKS.get(name)
        if check is not None:
            check(self, value)

    def on_headers_complete(self) -> None:
        headers, parser = self._headers, self._parser
        if len(headers) > self._limits.header_count:
            message = f"more than {self._limits.header_count} headers"
            self._fail(BadInput(message, status=431, code="headers_too_large"))
        if self._bytes > self._limits.header_bytes:
            self._fail(self._too_long_a_head())
        try:
            path, query, authority = target_of(self._url)
        except ValueError:
            self._fail(BadInput("the request target is not a valid URL"))
        exchange = Exchange(self._wire, parser.get_method().decode("ascii"), path, headers, self._id)
        exchange.in_trace = self._in_trace
        exchange.query = query
        if not parser.should_keep_alive():
            exchange.keep_alive = False
        if self._protocol != HTTP_1_1:
            self._suit(exchange)
        elif not self._host:
            self._fail(BadInput("an HTTP/1.1 request needs a Host header"))
        if authority is not None:
            exchange.headers = [(b"host", authority), *(each for each in headers if each[0] != b"host")]
        for check in self._checks:
            exchange.refusal = check(exchange, self._coming)
            if exchange.refusal is not None:
                if self._coming > SMALL_BODY_BYTES:
                    self._fail(exchange.refusal)
                break
        self._arriving = exchange
        self._bytes = 0
        self.part = BODY
        self.queue.append(exchange)

    def _suit(self, exchange: Exchange) -> None:
        """HTTP/1.0 knows no chunks and no leave to continue, and is closed; nobody speaks anything older.

        The parser takes RTSP/1.0 and ICE/1.0 for HTTP/1.0, so the name is looked at here.
        """
        if self._protocol != HTTP_1_0:
            self._fail(BadInput("only HTTP/1.1 and HTTP/1.0 are spoken here"))
        if self._transfer:
            self._fail(BadInput("HTTP/1.0 has no Transfer-Encoding"))  # RFC 9112 section 6.1
        exchange.may_chunk = exchange.keep_alive = self._continue = False

    def on_chunk_header(self) -> None:
        """A chunked body: many tiny chunks cost more than their bytes."""
        self._chunks += 1
        if self._chunks > self._limits.chunk_count:
            self._fail(TooLarge(f"the body has more than {self._limits.chunk_count} chunks"))

    def on_body(self, body: bytes) -> None:
        exchange = self._arriving
        assert exchange is not None
        if not exchange.body:
            exchange.body = body  # all of it, more often than not
        else:
            self._body += body
        if len(exchange.body) + len(self._body) > self._limits.body_bytes:
            self._fail(self._too_long_a_body())

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
        """Stop the parser from inside one of its callbacks; `feed` then raises this."""
        self._refusal = refusal
        raise refusal

    def _check_length(self, value: bytes) -> None:
        digits = value.strip(b" \t")
        if not digits.isdigit() or int(digits) > self._limits.body_bytes:
            self._fail(self._too_long_a_body())
        self._coming = self._declared = int(digits)

    def _check_transfer(self, value: bytes) -> None:
        """`chunked`, once: any other coding would hide where the body ends, or what it says (RFC 9112 section 6)."""
        codings = [coding.strip() for coding in value.lower().split(b",")]
        if codings[-1] != b"chunked" or codings.count(b"chunked") > 1:
            self._fail(BadInput("Transfer-Encoding must be `chunked`, once"))
        if len(codings) > 1:
            message = "the only transfer coding known here is `chunked`"
            self._fail(BadInput(message, status=501, code="unsupported_transfer_encoding"))
        self._transfer = value
        self._coming = self._limits.body_bytes

    def _check_host(self, value: bytes) -> None:
        if self._host or not is_host(value):
            self._fail(BadInput("there must be one Host header, and it must name a host"))
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

    def _too_long_a_body(self) -> WeirError:
        return TooLarge(f"the body exceeds {self._limits.body_bytes} bytes")

    def _too_long_a_head(self) -> WeirError:
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


@lru_cache(maxsize=256)
def is_host(value: bytes) -> bool:
    """Whether this is a host with or without a port (RFC 9110 section 7.2). A client sends one of a few."""
    return _HOST.fullmatch(value.strip(b" \t")) is not None


@lru_cache(maxsize=256)
def target_of(target: bytes) -> tuple[str, bytes, bytes | None]:
    """The path of a request target, unescaped; its query; the authority where it names one. Raises ValueError.

    The authority takes the place of Host (RFC 9112 section 3.2.2), and an empty path means `/`. Nearly every request
    asks for one of a few.
    """
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise ValueError("this is no URL") from None
    authority = None
    if url.schema is not None:
        authority = target.partition(b"://")[2].partition(b"?")[0].partition(b"/")[0]
        if url.schema.lower() not in (b"http", b"https") or not is_host(authority):
            raise ValueError("this is no address of a web server")
    path = (url.path or b"/").decode("ascii")
    return (unquote(path) if "%" in path else path), target.partition(b"?")[2], authority
