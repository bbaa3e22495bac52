"""Tenants' API keys: 32 random bytes, stored as SHA-256. Slow hashes are for passwords, which can be guessed."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256

PREFIX = "weir_"
SECRET_BYTES = 32
SCHEME = "sha256:"

_WRITTEN = re.compile(r"sha256:[0-9a-fA-F]{64}")


def new_key() -> tuple[str, str]:
    """A new key, and its hash as the tenants file writes it."""
    key = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return key, written(digest(key.encode("ascii")))


def digest(key: bytes) -> bytes:
    return sha256(key).digest()


def written(digest: bytes) -> str:
    """A digest as the tenants file writes it: `sha256:` and 64 hex digits."""
    return SCHEME + digest.hex()


def parse(text: str) -> bytes | None:
    """The digest in a hash as the tenants file writes it; None if the text is not one."""
    return bytes.fromhex(text.removeprefix(SCHEME)) if _WRITTEN.fullmatch(text) else None
