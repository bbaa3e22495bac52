"""The front guard: what a socket may send before any handler runs. Bytes in, requests out, no socket here.

    bytes and count of headers, length of the URL        431, 414
    bytes of the body, declared or chunked; chunks       413
    Content-Encoding                                     415: a compressed body could not be bounded
    what is not HTTP/1.1, or not one request only        400, by llhttp, which parses strictly
    what a head check of the listener refuses            as the check says; a large body is not even read

A request is handed on when its body is complete: a slow upload holds a socket and never a handler. Trailers are
dropped (RFC 9110 section 6.5.1 allows it): what stands behind a body must not speak for the request. How slowly a
client may send, and in which order it is answered, is `connection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

import httptools

from services.runtime.errors import BadInput, TooLarge, WeirError
from services.runtime.http import Exchange, HeadCheck
from services.runtime.wire import Wire

NOTHING, HEAD, BODY = "", "headers", "body"  # which part of a request is under way
SMALL_BODY_BYTES = 16_384  # of a refused request: read to its end, so that the connection can be used again
CHUNK_LINES_BYTES = 12  # around a chunk: its size, two line ends; more than that is padding


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

    @property
    def raw_body_bytes(self) -> int:
        """A body as it is sent: chunks with their lines, and trailers."""
        return self.body_bytes + self.chunk_count * CHUNK_LINES_BYTES + self.header_bytes


class Inbound:
    """One connection's requests, as they arrive. `line` holds those whose head is here, oldest first.

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
        "_headers",
        "_id",
        "_in_trace",
        "_limits",
        "_parser",
        "_refusal",
        "_url",
        "_wire",
        "completed",
        "line",
        "part",
    )

    def __init__(self, limits: GuardLimits, wire: Wire, checks: tuple[HeadCheck, ...] = ()) -> None:
        self.line: deque[Exchange] = deque()
        self.part = NOTHING
        self.completed = 0
        self._limits = limits
        self._checks = checks
        self._wire = wire
        self._bytes = 0  # of this part; of a read that brings two parts the second is not charged for
        self._arriving: Exchange | None = None
        self._body = bytearray()
        self._refusal: WeirError | None = None
        self.on_message_begin()
        self.part = NOTHING
        self._parser = httptools.HttpRequestParser(self)
        # What stands behind a request that closes is ignored; by default it would be an error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed(self, data: bytes) -> None:
        """Take what a socket brought. Raises WeirError, after which this connection can ask nothing more."""
        self._bytes += len(data)
        if not self.part:
            self.part = HEAD
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.line[-1].keep_alive = False  # declined, as RFC 9110 section 7.8 allows: HTTP/1.1, then closed
        except httptools.HttpParserError:
            raise self._refusal or BadInput("this is not a valid HTTP/1.1 request") from None
        if self.part is HEAD and self._bytes > self._limits.header_bytes:
            raise self._too_long_a_head()
        if self.part is BODY and self._bytes > self._limits.raw_body_bytes:
            raise TooLarge(f"the body's chunks and trailers exceed {self._limits.raw_body_bytes} bytes")

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
        """The connection is lost. Lets go of the parser, which holds this in turn."""
        self.line.clear()
        del self._parser

    # What the parser finds

    def on_message_begin(self) -> None:
        self.part = HEAD
        self._headers: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._chunks = 0
        self._id: bytes | None = None
        self._in_trace = False
        self._continue = False
        self._coming = 0  # bytes of the body at most

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
        if self._bytes > self._limits.header_bytes and _size(headers) > self._limits.header_bytes:
            self._fail(self._too_long_a_head())
        try:
            path = path_of(self._url)
        except (UnicodeDecodeError, httptools.HttpParserInvalidURLError):
            self._fail(BadInput("the request target is not a valid URL"))
        exchange = Exchange(self._wire, parser.get_method().decode("ascii"), path, headers, self._id)
        exchange.in_trace = self._in_trace
        exchange.query = self._url.partition(b"?")[2]
        if not parser.should_keep_alive():
            exchange.keep_alive = False
        version = parser.get_http_version()
        if version != "1.1":
            self._suit(exchange, version)
        for check in self._checks:
            exchange.refusal = check(exchange, self._coming)
            if exchange.refusal is not None:
                if self._coming > SMALL_BODY_BYTES:
                    self._fail(exchange.refusal)
                break
        self._arriving = exchange
        self._bytes = 0
        self.part = BODY
        self.line.append(exchange)

    def _suit(self, exchange: Exchange, version: str) -> None:
        """HTTP/1.0 knows no chunks and no leave to continue, and is closed; nobody speaks anything older."""
        if version != "1.0":
            self._fail(BadInput(f"HTTP/{version} is not spoken here"))
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
        self._coming = int(digits)

    def _check_transfer(self, value: bytes) -> None:
        self._coming = self._limits.body_bytes

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
    b"content-length": Inbound._check_length,
    b"transfer-encoding": Inbound._check_transfer,
    b"content-encoding": Inbound._check_encoding,
    b"expect": Inbound._note_expectation,
    b"x-request-id": Inbound._note_id,
    b"traceparent": Inbound._note_trace,
}


def _size(headers: list[tuple[bytes, bytes]]) -> int:
    """Without what came of the body in the same read."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


@lru_cache(maxsize=256)
def path_of(target: bytes) -> str:
    """The path of a request target, unescaped. Nearly every request asks for one of a few."""
    path: str = httptools.parse_url(target).path.decode("ascii")
    return unquote(path) if "%" in path else path
