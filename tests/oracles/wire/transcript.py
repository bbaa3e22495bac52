r"""What goes over one connection, byte for byte, as text that a person can read and compare.

    === a question in plain words          the name of the exchange
    > POST /ask HTTP/1.1                   what the client sends
    < HTTP/1.1 200 OK                      what it gets
    (after 2.5 s)                          virtual time that passed, where it is a tenth of a second or more
    (closed)                               the service closed the connection

A line of the transcript is a line of the wire, and its end is CR LF. Where it is another, the line says so: `\n` at its
end is a line feed alone, and ` \` that nothing ends it. Bytes that are no printable ASCII are written `\x1f`. What
is long and tells nothing (a page, a file) is told by its length and digest, and `x` 100 times is `{x * 100}`.

Nothing is left to chance in the loop that these are made in. Three things are masked all the same, so that an exchange
that is added does not change those behind it: `<date>`, `<created>` (both must be the loop's own time), and `<id>`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from loadtests.cluster.loop import EPOCH_S

LONG_BYTES = 8000
TAG = re.compile(rb"(if-none-match: )\"[0-9a-f]{20}")
REPEATED = re.compile(r"(.)\1{40,}")
ID = re.compile(rb"\r\nx-request-id: ([0-9a-f]{12}-[0-9a-f]{1,4}|[0-9a-f]{16})\r\n")
LINES = re.compile(rb"[^\n]*\n|[^\n]+\Z")
WITHIN_S = 2.0
"""How long an answer is waited for, in virtual seconds, where nothing else is said."""


class Client(asyncio.Protocol):
    """One connection, and when what came."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self.closed_at: float | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append((asyncio.get_running_loop().time(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed_at = asyncio.get_running_loop().time()


async def connect(port: int) -> Client:
    """A client of the listener on this port."""
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client


@dataclass
class Transcript:
    """Exchanges with one listener after another, in the order in which they were made."""

    title: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join([f"# {self.title}", *self.lines]) + "\n"

    async def say(
        self, name: str, port: int, *pieces: bytes | float, within_s: float = WITHIN_S, page: bool = False
    ) -> bytes:
        """Send these over a connection of its own, in order; a number is a pause in seconds. Returns what came.

        `page`: what comes is a page or a file, whose text is not what this is about.
        """
        self.lines += ["", f"=== {name}"]
        client = await connect(port)
        for piece in pieces:
            await self._next(client, piece)
        await self.listen(client, within_s, page=page)
        client.transport.abort()
        return b"".join(data for _, data in client.heard)

    async def _next(self, client: Client, piece: bytes | float) -> None:
        if isinstance(piece, float):
            self.lines.append(f"(a pause of {piece:g} s)")
            await asyncio.sleep(piece)
            return
        self.lines += [f"> {line}".rstrip(" ") for line in written(TAG.sub(rb"\1<of the page>", piece))]
        client.transport.write(piece)
        await asyncio.sleep(0)

    async def listen(self, client: Client, within_s: float = WITHIN_S, *, page: bool = False) -> None:
        """Write down what comes in so many seconds."""
        now = asyncio.get_running_loop().time
        began, had = now(), len(client.heard)
        await asyncio.sleep(within_s)
        told_s = 0.0
        for at, data in _joined(client.heard[had:] if had == 0 else client.heard):
            if at - began - told_s >= 0.1:
                told_s = at - began
                self.lines.append(f"(after {told_s:.1f} s)")
            shown = masked(data, int(EPOCH_S + at))
            self.lines += [f"< {line}".rstrip(" ") for line in written(without_text(shown) if page else shown)]
        if client.closed_at is not None:
            late_s = client.closed_at - began
            self.lines.append(f"(closed after {late_s:.1f} s)" if late_s - told_s >= 0.1 else "(closed)")
        elif not client.heard:
            self.lines.append("(nothing)")


def _joined(heard: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """What came within a tenth of a second, as one: how an answer is cut into reads says nothing."""
    at, together = 0.0, b""
    for when, data in heard:
        if together and when - at >= 0.1:
            yield at, together
            together = b""
        if not together:
            at = when
        together += data
    if together:
        yield at, together


def masked(data: bytes, now: int) -> bytes:
    """Without what depends on how many exchanges were made before, and when. `now`: seconds since the epoch."""
    for second in (now - 1, now):
        date = formatdate(second, usegmt=True).encode()
        data = data.replace(b"\r\ndate: %b\r\n" % date, b"\r\ndate: <date>\r\n")
        data = data.replace(b'"created":%d' % second, b'"created":<created>')
    for id in ID.findall(data):
        data = data.replace(id, b"<id>")
    return data


def without_text(data: bytes) -> bytes:
    """Without a page's body, and what is derived from it."""
    head, end, body = data.partition(b"\r\n\r\n")
    for header in (rb"(\r\ncontent-length: )\d+", rb"(\r\netag: )\"[0-9a-f]{20}", rb"(sha256-)[A-Za-z0-9+/=]+"):
        head = re.sub(header, rb"\1<of the page>", head)
    return head + end + (b"<the page>" if body else b"")


def written(data: bytes) -> list[str]:
    """These bytes as lines of a transcript."""
    head, end, body = data.partition(b"\r\n\r\n")
    if len(body) > LONG_BYTES and len(set(body)) > 1:
        return [*_lines(head + end), f"<{len(body)} bytes, sha256 {hashlib.sha256(body).hexdigest()[:16]}> \\"]
    return list(_lines(data))


def _lines(data: bytes) -> Iterator[str]:
    for line in LINES.findall(data):
        if line.endswith(b"\r\n"):
            yield _readable(line[:-2])
        elif line.endswith(b"\n"):
            yield _readable(line[:-1]) + "\\n"
        else:
            yield _readable(line) + " \\"


def _readable(line: bytes) -> str:
    text = "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in line)
    return REPEATED.sub(lambda run: f"{{{run[1]} * {len(run[0])}}}", text)


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """One request. A body that is no bytes is sent as JSON; `_` in a header's name stands for `-`."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body is not None:
        named["content-length"] = str(len(content))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def get(path: str, **headers: str) -> bytes:
    """A GET."""
    return request("GET", path, **headers)


def post(path: str, body: Any, **headers: str) -> bytes:
    """A POST."""
    return request("POST", path, body, **headers)
