"""Requests as bytes: valid, doubtful and hostile, and what has to come of each.

`statuses` are those of the answers in order, 100 (Continue) left out; `open` says whether the connection may be used
again. Handlers stand at /echo (answers with the body), /later (the same, from a task), /stream (answers in chunks) and
/full (refuses with 429).
"""

from __future__ import annotations

from typing import NamedTuple

from services.runtime.guard import GuardLimits

LIMITS = GuardLimits(header_bytes=1024, header_count=12, url_bytes=128, body_bytes=64, chunk_count=8)


class Case(NamedTuple):
    """One connection's worth of bytes."""

    data: bytes
    statuses: list[int]
    open: bool
    bodies: list[bytes] | None = None
    heads_only: tuple[int, ...] = ()  # which answers, by their place, are to HEAD


def get(path: bytes = b"/echo", *headers: bytes, version: bytes = b"1.1", method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/" + version, b"host: t", *headers]) + b"\r\n\r\n"


def post(body: bytes, *headers: bytes, path: bytes = b"/echo") -> bytes:
    return get(path, b"content-length: %d" % len(body), *headers, method=b"POST") + body


def chunked(*lines: bytes, headers: tuple[bytes, ...] = (), path: bytes = b"/echo") -> bytes:
    return get(path, b"transfer-encoding: chunked", *headers, method=b"POST") + b"".join(lines)


LAST = b"0\r\n\r\n"
CLOSE = b"connection: close"

VALID = {
    "a plain one": Case(get(), [200], True, [b""]),
    "a body": Case(post(b"hello"), [200], True, [b"hello"]),
    "a body of nothing": Case(post(b""), [200], True, [b""]),
    "a body at the limit": Case(post(b"x" * 64), [200], True, [b"x" * 64]),
    "a body to a handler that waits": Case(post(b"hello", path=b"/later"), [200], True, [b"hello"]),
    "an answer in chunks": Case(get(b"/stream"), [200], True, [b"onetwo"]),
    "a refusal": Case(get(b"/full"), [429], True),
    "a path that leads nowhere": Case(get(b"/nowhere"), [404], True),
    "a method that is not for it": Case(get(b"/echo", method=b"DELETE"), [405], True),
    "a query and escapes": Case(get(b"/%65cho?a=b%20c"), [200], True, [b""]),
    "an absolute target without a path": Case(get(b"http://elsewhere"), [404], True),
    "an absolute target with a query alone": Case(get(b"http://elsewhere?a=/echo"), [404], True),
    "a Host with a port": Case(b"GET /echo HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n", [200], True),
    "a Host in capitals, with spaces": Case(b"GET /echo HTTP/1.1\r\nHOST: \t A.Example:80 \r\n\r\n", [200], True),
    "HTTP/1.0 without a Host": Case(b"GET /echo HTTP/1.0\r\n\r\n", [200], False),
    "a body that speaks of RTSP": Case(post(b"GET / RTSP/1.0\r\nhost: t\r\n\r\n"), [200], True),
    "chunks that hold empty lines": Case(chunked(b"A\r\n\r\n\r\n\r\n\r\n\r\n\r\n", LAST) + get(), [200, 200], True),
    "line ends between two": Case(post(b"one") + b"\r\n" + get(), [200, 200], True, [b"one", b""]),
    "chunked in capitals": Case(
        get(b"/echo", b"Transfer-Encoding: Chunked", method=b"POST") + b"2\r\nhi\r\n" + LAST, [200], True, [b"hi"]
    ),
    "an absolute target": Case(get(b"http://elsewhere/echo"), [200], True, [b""]),
    "HEAD has a head only": Case(get(b"/echo", method=b"HEAD") + get(), [200, 200], True, [b"", b""], (0,)),
    "HEAD of chunks has a head only": Case(get(b"/stream", method=b"HEAD") + get(), [200, 200], True, [b"", b""], (0,)),
    "line ends before it": Case(b"\r\n\r\n" + get(), [200], True),
    "names in any case": Case(get(b"/echo", b"CoNtEnT-LeNgTh: 2", method=b"POST") + b"hi", [200], True, [b"hi"]),
    "spaces around a value": Case(get(b"/echo", b"content-length: \t 2 \t", method=b"POST") + b"hi", [200], True),
    "a header without a value": Case(get(b"/echo", b"x-empty:"), [200], True),
    "bytes above ASCII in a value": Case(get(b"/echo", b"x-name: \xc3\xa9\xff"), [200], True),
    "identity is no encoding": Case(post(b"hi", b"content-encoding: Identity"), [200], True, [b"hi"]),
    "chunks": Case(chunked(b"2\r\nhi\r\n", b"3\r\n yo\r\n", LAST), [200], True, [b"hi yo"]),
    "chunks of nothing": Case(chunked(LAST), [200], True, [b""]),
    "a size in capitals, with noughts": Case(chunked(b"000A\r\n0123456789\r\n", LAST), [200], True, [b"0123456789"]),
    "a chunk with an extension": Case(chunked(b"2;a=b\r\nhi\r\n", LAST), [200], True, [b"hi"]),
    "trailers, which are dropped": Case(
        chunked(b"2\r\nhi\r\n", b"0\r\nx-mirror: trailer\r\n\r\n", headers=(b"x-mirror: header",)) + get(),
        [200, 200], True, [b"header hi", b""],
    ),
    "two at once": Case(post(b"one") + post(b"two"), [200, 200], True, [b"one", b"two"]),
    "a slow one before a quick one": Case(post(b"1", path=b"/later") + post(b"2"), [200, 200], True, [b"1", b"2"]),
    "an answer in chunks between two": Case(
        post(b"1") + get(b"/stream") + post(b"2", path=b"/later"), [200, 200, 200], True, [b"1", b"onetwo", b"2"]
    ),
    "more at once than are answered in a turn": Case(get() * 80, [200] * 80, True),
    "the last one asks to close": Case(get() + get(b"/echo", CLOSE), [200, 200], False),
    "nothing is answered after a close": Case(get(b"/echo", CLOSE) + get(), [200], False),
    "nothing is answered after a slow close": Case(get(b"/later", CLOSE) + get(), [200], False),
    "a close among other words": Case(get(b"/echo", b"connection: x-hop, Close"), [200], False),
    "HTTP/1.0 is closed": Case(get(version=b"1.0"), [200], False),
    "HTTP/1.0 that would stay is closed": Case(get(b"/echo", b"connection: keep-alive", version=b"1.0"), [200], False),
    "nothing is answered behind HTTP/1.0": Case(
        get(b"/echo", b"connection: keep-alive", version=b"1.0") + get(), [200], False
    ),
    "HTTP/1.0 gets no chunks": Case(get(b"/stream", version=b"1.0"), [200], False, [b"onetwo"]),
    "an upgrade is declined": Case(get(b"/echo", b"connection: upgrade", b"upgrade: h2c"), [200], False),
    "an upgrade and its first bytes": Case(
        get(b"/later", b"connection: upgrade", b"upgrade: websocket") + b"\x81\x05hello", [200], False
    ),
    "leave to continue is given": Case(post(b"hello", b"expect: 100-continue"), [200], True, [b"hello"]),
    "another expectation is not": Case(post(b"hello", b"expect: miracles"), [200], True, [b"hello"]),
    "leave behind another answer": Case(
        get(b"/later") + post(b"hello", b"Expect: 100-Continue"), [200, 200], True, [b"", b"hello"]
    ),
}  # fmt: skip

REFUSED = {
    "a URL that is too long": Case(get(b"/" + b"a" * 200), [414], False),
    "a URL that never ends": Case(b"GET /" + b"a" * 2000, [414], False),
    "a header that is too long": Case(get(b"/echo", b"x: " + b"y" * 1100), [431], False),
    "headers that are too long together": Case(get(b"/echo", *[b"x: " + b"y" * 150] * 8), [431], False),
    "headers that are too many": Case(get(b"/echo", *[b"x: y"] * 12), [431], False),
    "headers that never end": Case(get()[:-2] + b"x: " + b"y" * 2000, [431], False),
    "line ends for ever": Case(b"\r\n" * 600, [431], False),
    "a body declared too long": Case(post(b"x" * 65), [413], False),
    "a length without measure": Case(get(b"/echo", b"content-length: 99999999999999", method=b"POST"), [413], False),
    "chunks that are too much": Case(chunked(b"28\r\n" + b"x" * 40 + b"\r\n", b"19\r\n" + b"x" * 25), [413], False),
    "chunks that are too many": Case(chunked(b"1\r\nx\r\n" * 8, LAST), [413], False),
    "a compressed body": Case(post(b"hi", b"content-encoding: gzip"), [415], False),
    "not HTTP": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400], False),
    "HTTP/2 by its preface": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], False),
    "a version of another world": Case(get(version=b"9.9"), [400], False),
    "no version": Case(b"GET /echo\r\n\r\n", [400], False),
    "a version that is no longer": Case(get(version=b"2.0"), [400], False),
    "no target": Case(b"GET  HTTP/1.1\r\n\r\n", [400], False),
    "a target that is no URL": Case(get(b"http://[::/"), [400], False),
    "bytes above ASCII in the target": Case(get(b"/\xc3\xa9"), [400], False),
    "a space in the target": Case(get(b"/echo a"), [400], False),
    "a method that nobody knows": Case(get(method=b"BREW"), [400], False),
    "a length and chunks": Case(chunked(LAST, headers=(b"content-length: 5",)), [400], False),
    "chunks and a length": Case(post(LAST, b"transfer-encoding: chunked"), [400], False),
    "two lengths that differ": Case(post(b"hello", b"content-length: 6"), [400], False),
    "two lengths that agree": Case(post(b"hello", b"content-length: 5"), [400], False),
    "a length in hexadecimal": Case(get(b"/echo", b"content-length: 0x5", method=b"POST") + b"hello", [400], False),
    "a length below nothing": Case(get(b"/echo", b"content-length: -5", method=b"POST"), [400], False),
    "a length with a sign": Case(get(b"/echo", b"content-length: +5", method=b"POST") + b"hello", [400], False),
    "a list of lengths": Case(get(b"/echo", b"content-length: 5, 5", method=b"POST") + b"hello", [400], False),
    "no Host": Case(b"GET /echo HTTP/1.1\r\n\r\n", [400], False),
    "no Host, but headers": Case(b"GET /echo HTTP/1.1\r\nx: y\r\n\r\n", [400], False),
    "no Host behind a good one": Case(get() + b"GET /echo HTTP/1.1\r\nx: y\r\n\r\n", [200, 400], False),
    "a Host of nothing": Case(b"GET /echo HTTP/1.1\r\nhost:\r\n\r\n", [400], False),
    "two Hosts": Case(get(b"/echo", b"Host: other"), [400], False),
    "two Hosts that agree": Case(get(b"/echo", b"host: t"), [400], False),
    "two Hosts in one": Case(b"GET /echo HTTP/1.1\r\nhost: a, b\r\n\r\n", [400], False),
    "a Host with a user": Case(b"GET /echo HTTP/1.1\r\nhost: a@b\r\n\r\n", [400], False),
    "a Host with a path": Case(b"GET /echo HTTP/1.1\r\nhost: a/b\r\n\r\n", [400], False),
    "a Host with a port of letters": Case(b"GET /echo HTTP/1.1\r\nhost: a:b\r\n\r\n", [400], False),
    "an absolute target and no Host": Case(b"GET http://a/echo HTTP/1.1\r\n\r\n", [400], False),
    "an absolute target with a user": Case(get(b"http://user@t/echo"), [400], False),
    "an absolute target of another scheme": Case(get(b"ftp://t/echo"), [400], False),
    "RTSP": Case(b"GET /echo RTSP/1.0\r\nhost: t\r\n\r\n", [400], False),
    "RTSP of the newest version": Case(b"POST /echo RTSP/1.1\r\nhost: t\r\n\r\n", [400], False),
    "RTSP behind a body": Case(post(b"one") + b"GET /echo RTSP/1.0\r\nhost: t\r\n\r\n", [200, 400], False, [b"one"]),
    "RTSP behind chunks": Case(
        chunked(b"2\r\nhi\r\n", LAST) + b"GET /echo RTSP/1.0\r\nhost: t\r\n\r\n", [200, 400], False, [b"hi"]
    ),
    "RTSP behind a body that reads like HTTP": Case(
        post(b"GET / HTTP/1.1\r\n") + b"GET /echo RTSP/1.0\r\nhost: t\r\n\r\n", [200, 400], False
    ),
    "RTSP behind line ends": Case(b"\r\n\r\nGET /echo RTSP/1.0\r\nhost: t\r\n\r\n", [400], False),
    "ICE": Case(b"SOURCE /echo ICE/1.0\r\nhost: t\r\n\r\n", [400], False),
    "HTTP/1.0 with chunks": Case(
        get(b"/echo", b"transfer-encoding: chunked", method=b"POST", version=b"1.0") + LAST, [400], False
    ),
    "a coding before chunked": Case(
        get(b"/echo", b"transfer-encoding: gzip, chunked", method=b"POST") + LAST, [501], False
    ),
    "identity before chunked": Case(
        get(b"/echo", b"transfer-encoding: identity", b"transfer-encoding: chunked", method=b"POST") + LAST,
        [400], False,
    ),
    "chunked twice": Case(get(b"/echo", b"transfer-encoding: chunked, chunked", method=b"POST") + LAST, [400], False),
    "chunked on two lines": Case(
        get(b"/echo", b"transfer-encoding: chunked", b"transfer-encoding: chunked", method=b"POST") + LAST, [400], False
    ),
    "chunked with a parameter": Case(
        get(b"/echo", b"transfer-encoding: chunked;q=1", method=b"POST") + LAST, [400], False
    ),
    "a coding alone": Case(get(b"/echo", b"transfer-encoding: gzip", method=b"POST") + b"hi", [400], False),
    "a coding that is not the last": Case(
        get(b"/echo", b"transfer-encoding: chunked, gzip", method=b"POST") + LAST, [400], False
    ),
    "a size that is no number": Case(chunked(b"zz\r\nhi\r\n"), [400], False),
    "a size beyond measure": Case(chunked(b"fffffffffffffffffff\r\nhi\r\n"), [400], False),
    "a chunk longer than its size": Case(chunked(b"2\r\nhiho\r\n", LAST), [400], False),
    "line feeds alone in chunks": Case(chunked(b"2\nhi\n0\n\n"), [400], False),
    "a folded header": Case(get(b"/echo", b"x: a\r\n b"), [400], False),
    "a NUL in a header": Case(get(b"/echo", b"x: a\x00b"), [400], False),
    "a carriage return alone in a header": Case(get(b"/echo", b"x: a\rb: c"), [400], False),
    "a space before the colon": Case(get(b"/echo", b"content-length : 5"), [400], False),
    "a header without a colon": Case(get(b"/echo", b"nothing"), [400], False),
    "a header without a name": Case(get(b"/echo", b": nothing"), [400], False),
    "a space in a name": Case(get(b"/echo", b"bad name: x"), [400], False),
    "nonsense behind a good one": Case(post(b"one") + b"\x00\x01\x02\x03", [200, 400], False, [b"one"]),
    "nonsense behind a slow one": Case(get(b"/later") + b"\x00\x01\x02\x03", [200, 400], False),
    "a body that hides a request": Case(
        post(b"hello", b"transfer-encoding: chunked") + get(b"/full"), [400], False
    ),
    "a length that leaves a request behind": Case(
        get(b"/echo", b"content-length: 2", method=b"POST") + b"hi" + get(b"/full"), [200, 429], True
    ),
}  # fmt: skip

CASES = VALID | REFUSED
