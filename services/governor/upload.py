"""A payload's upload: a manifest, then its chunks in order.

Each chunk is checked (index, length, digest) before it is kept, and the last also the length and digest of the whole. A
wrong chunk changes nothing and can be sent again; if the whole is wrong, the attempt ends. The declared size,
`chunk_bytes * chunks` or `total_bytes` if less, is reserved before the first byte.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from services.governor.frame import Chunk, Manifest

MAX_PAYLOAD_BYTES = 52_428_800
DIGEST_BYTES = 64  # of the last chunk's digest, in hexadecimal


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why a chunk is rejected, as a `need_code`; `over` if the attempt has ended."""

    need: str
    over: bool = False


def declared_bytes(manifest: Manifest) -> int | None:
    """The payload's largest size in bytes; None if the manifest is not acceptable."""
    if (
        not manifest.payload_id
        or manifest.chunk_bytes == 0
        or manifest.chunks == 0
        or manifest.content_encoding not in ("", "identity")
        or manifest.cipher not in ("", "none")
    ):
        return None
    max_bytes = manifest.chunk_bytes * manifest.chunks
    if 0 < manifest.total_bytes < max_bytes:
        max_bytes = manifest.total_bytes
    return max_bytes if max_bytes <= MAX_PAYLOAD_BYTES else None


class Upload:
    """One attempt at a payload, for which `reserved` bytes are reserved."""

    __slots__ = ("_data", "_digest", "_last", "_manifest", "_next", "_payload", "reserved")

    def __init__(self, manifest: Manifest, reserved: int) -> None:
        self._manifest = manifest
        self._data = bytearray()
        self._digest = hashlib.sha256()
        self._next = 0
        self._last = ""  # the last chunk's digest
        self._payload = b""  # set when it is whole; `_data` is empty then, so a payload is never held twice
        self.reserved = reserved

    @property
    def held_bytes(self) -> int:
        """The most it may hold: the payload, the manifest's texts, and a digest."""
        return self.reserved + self._manifest.bytes + DIGEST_BYTES

    @property
    def bytes_in(self) -> int:
        return len(self._data) + len(self._payload)

    @property
    def whole(self) -> bool:
        """Every chunk has been accepted."""
        return self._next == self._manifest.chunks

    @property
    def payload(self) -> bytes:
        """The payload once it is whole; not a copy."""
        return self._payload

    @property
    def content_type(self) -> str:
        return self._manifest.content_type

    def take(self, chunk: Chunk) -> Wrong | None:
        """Keep this chunk, or return what is wrong. The last chunk may be sent again, to retry the run."""
        if chunk.payload_id != self._manifest.payload_id:
            return Wrong("payload_id_mismatch")
        if self.whole and chunk.index == self._next - 1 and _plain(chunk.sha256) == self._last:
            return None
        if chunk.index != self._next or self.whole:
            return Wrong("chunk_expected_index")
        try:
            data = base64.b64decode(chunk.bytes_b64.replace("\r", "").replace("\n", ""), validate=True)
        except (binascii.Error, ValueError):
            return Wrong("chunk_b64_invalid")
        if len(data) > self._manifest.chunk_bytes:
            return Wrong("chunk_too_large")
        if len(self._data) + len(data) > self.reserved:
            return Wrong("payload_too_large")
        digest = _plain(chunk.sha256)
        if digest != hashlib.sha256(data).hexdigest():
            return Wrong("chunk_hash_mismatch")
        self._data += data
        self._digest.update(data)
        self._next += 1
        self._last = digest
        return self._complete() if self.whole else None

    def _complete(self) -> Wrong | None:
        wrong = self._wrong_in_the_whole()
        if wrong is None:
            self._payload = bytes(self._data)
            self._data = bytearray()
        return wrong

    def _wrong_in_the_whole(self) -> Wrong | None:
        manifest = self._manifest
        if manifest.total_bytes and len(self._data) != manifest.total_bytes:
            return Wrong("payload_size_mismatch", over=True)
        declared = _plain(manifest.sha256)
        if declared and declared != self._digest.hexdigest():
            return Wrong("payload_hash_mismatch", over=True)
        return None


def _plain(digest: str) -> str:
    return digest.strip().lower()
