"""A payload on its way in: a manifest that says what will come, then chunks that must be just that.

Every byte is accounted for before it is kept: by its place, its length, its digest, and at the end by the length and
the digest of the whole. The first thing that is wrong is the answer, and what is kept stays as it was; only where
the whole turns out wrong is the attempt over, and its bytes are dropped.

What a manifest declares is reserved at once, `chunk_bytes * chunks` or `total_bytes` if that is less. So what may
ever be kept is known before the first byte comes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from services.governor.frame import Chunk, Manifest

MAX_PAYLOAD_BYTES = 52_428_800
DIGEST_BYTES = 64  # of the last chunk's, in hexadecimal


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why a chunk is not taken, as a `need_code`; `over` when the attempt has ended with it."""

    need: str
    over: bool = False


def declared_bytes(manifest: Manifest) -> int | None:
    """The most bytes this payload can have; None where the manifest cannot be accepted."""
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
    """One attempt at a payload. `reserved` bytes are set aside for it while it lives."""

    __slots__ = ("_data", "_digest", "_last", "_manifest", "_next", "_payload", "reserved")

    def __init__(self, manifest: Manifest, reserved: int) -> None:
        self._manifest = manifest
        self._data = bytearray()
        self._digest = hashlib.sha256()
        self._next = 0
        self._last = ""  # the digest of the chunk that came last
        self._payload = b""  # once it is whole: then `_data` is empty, so that a payload is never held twice
        self.reserved = reserved

    @property
    def held_bytes(self) -> int:
        """What it may ever keep: the payload, what its manifest says, and a digest."""
        return self.reserved + self._manifest.bytes + DIGEST_BYTES

    @property
    def bytes_in(self) -> int:
        return len(self._data) + len(self._payload)

    @property
    def whole(self) -> bool:
        """Every chunk is here, and right."""
        return self._next == self._manifest.chunks

    @property
    def payload(self) -> bytes:
        """All of it, once it is whole; not a copy."""
        return self._payload

    @property
    def content_type(self) -> str:
        return self._manifest.content_type

    def take(self, chunk: Chunk) -> Wrong | None:
        """Keep this chunk; or what is wrong with it. The last one sent again is taken again: a new attempt to run."""
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
