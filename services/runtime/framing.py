"""HTTP/1.1 framing (RFC 9112): status lines, header lines, chunks. What many answers share is made once."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from http import HTTPStatus

Headers = Collection[tuple[bytes, bytes]]

# RFC 9110 section 15. Python has these phrases from 3.13 on; the wire must not depend on its version.
_RENAMED = {413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | _RENAMED
STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode("ascii") for status in range(200, 600)
}
BODILESS = frozenset({204, 304})  # RFC 9110 sections 15.3.5 and 15.4.5: no body, and so no length

CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def block(headers: Headers) -> bytes:
    """Header lines, ready to be sent. Raises ValueError for a line break in a header, which would start another one."""
    lines = b"".join([b"%b: %b\r\n" % (name, value) for name, value in headers])
    if not lines.count(b"\n") == lines.count(b"\r") == len(headers):
        raise ValueError("a header holds a line break")
    return lines


@lru_cache(maxsize=64)
def content_type_line(content_type: bytes) -> bytes:
    """The header line, cached: a service uses few content types. Empty for an empty content type."""
    return block([(b"content-type", content_type)]) if content_type else b""


def chunk(data: bytes) -> bytes:
    """A chunk of a body of unknown length. `data` must not be empty: an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
