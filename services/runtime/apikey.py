"""What a key looks like, and what is kept of it: for those who make keys and those who check them.

A key is 32 random bytes, so it cannot be guessed, and one round of SHA-256 is enough to hide it: slow hashes (bcrypt,
Argon2) protect passwords, which can be guessed. The tenants file holds the hashes; who reads it has no key.
"""

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
    """What is kept of a key."""
    return sha256(key).digest()


def written(digest: bytes) -> str:
    """A digest as the tenants file writes it."""
    return SCHEME + digest.hex()


def parse(text: str) -> bytes | None:
    """The digest that the tenants file wrote; None where it is none."""
    return bytes.fromhex(text.removeprefix(SCHEME)) if _WRITTEN.fullmatch(text) else None
