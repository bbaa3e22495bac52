"""The page's files: a closed set, read once at start, so a path cannot reach any other file.

Each file has an ETag of its bytes, and a compressed copy where that is smaller. The content security policy lets the
page load these files only and connect to this service only: it works offline, and no name of a tenant or a worker can
become a script.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

from services.runtime.errors import BadInput
from services.runtime.http import Exchange

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
MAX_FILES = 64
MAX_BYTES = 4 * 1_048_576

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
    ".md": b"text/plain; charset=utf-8",
    ".woff2": b"font/woff2",
}
POLICY = (
    b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"object-src 'none'"
)
HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"vary", b"accept-encoding"),
)
NO_PAGE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Weir</title>
<p>The console's page is not installed here. Its data is: <a href="/console/events">/console/events</a>."""


class File(NamedTuple):
    """One file, and its compressed copy where that is smaller."""

    content_type: bytes
    body: bytes
    tag: bytes
    packed: bytes | None

    @classmethod
    def of(cls, name: str, body: bytes) -> File:
        """The file of this name. Raises KeyError for a suffix that is not in TYPES."""
        packed = gzip.compress(body, 9, mtime=0)
        smaller = packed if len(packed) < len(body) else None
        return cls(TYPES[Path(name).suffix], body, hashlib.sha256(body).hexdigest()[:20].encode(), smaller)


class Files:
    """All files, by path below the folder. Raises ValueError for more than MAX_FILES files or MAX_BYTES bytes."""

    def __init__(self, folder: Path = STATIC) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in TYPES)
        if len(paths) > MAX_FILES or sum(path.stat().st_size for path in paths) > MAX_BYTES:
            raise ValueError(f"{folder} has more than {MAX_FILES} files or {MAX_BYTES} bytes")
        self._files = {
            name: File.of(name, path.read_bytes())
            for path, name in ((path, path.relative_to(folder).as_posix()) for path in paths)
        }
        self._files.setdefault(INDEX, File.of(INDEX, NO_PAGE))

    async def page(self, exchange: Exchange) -> None:
        """GET /console."""
        await _send(exchange, self._files[INDEX])

    async def file(self, exchange: Exchange) -> None:
        """GET /console/static/PATH. Raises BadInput, 404."""
        found = self._files.get(exchange.tail)
        if found is None:
            raise BadInput("the console has no such file", status=404, code="not_found")
        await _send(exchange, found)

    def __repr__(self) -> str:
        return f"<Files {len(self._files)}>"


async def _send(exchange: Exchange, file: File) -> None:
    """Reply with the file, gzipped where the client accepts it, or with 304 where the client has it."""
    packed = file.packed if _takes_gzip(exchange.header(b"accept-encoding")) else None
    tag = b'"%b-gzip"' % file.tag if packed is not None else b'"%b"' % file.tag
    headers = [*HEADERS, (b"etag", tag)]
    if file.tag in (exchange.header(b"if-none-match") or b""):
        await exchange.reply(304, b"", content_type=file.content_type, headers=headers)
        return
    if packed is not None:
        headers.append((b"content-encoding", b"gzip"))
    await exchange.reply(200, file.body if packed is None else packed, content_type=file.content_type, headers=headers)


def _takes_gzip(accepted: bytes | None) -> bool:
    """Whether gzip is named with a weight above 0."""
    for part in (accepted or b"").split(b","):
        name, _, weight = part.strip().partition(b";")
        if name.strip().lower() == b"gzip":
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
