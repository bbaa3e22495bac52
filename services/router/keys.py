"""Keys: a secret that names its tenant. They are made, hashed and looked up here, and written down nowhere.

A key is 32 random bytes, so it cannot be guessed, and one round of SHA-256 is enough to hide it: slow hashes (bcrypt,
Argon2) protect passwords, which can be guessed. The tenants file holds the hashes; who reads it has no key.

**Looking up by hash leaks nothing.** Comparing keys byte by byte tells by its time how much of a guess was right. Here
a dictionary is asked for the hash of the guess. Its time may depend on the hash, but a guesser does not choose hashes:
to have the first n bits right costs 2^n tries, and having them all would still mean a second preimage, not the key.
What is found is compared once more, whole, in constant time (`hmac.compare_digest`, on bytes: on text it fails for
anything but ASCII). A wrong key costs what a right one does, one hash and one comparison, and leaves nothing behind.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256

PREFIX = "weir_"
SECRET_BYTES = 32
SCHEME = "sha256:"
LONGEST_KEY_BYTES = 256

EXAMPLE_KEYS = ("weir_example_demo", "weir_example_acme", "weir_example_nightly")
"""Those of tenants.example.yaml. Everybody can read them, so only a lab may have them."""

_BEARER = re.compile(rb"\s*bearer[ \t]+(\S+)\s*", re.IGNORECASE)
_HASH = re.compile(r"sha256:[0-9a-fA-F]{64}")
_NO_DIGEST = bytes(sha256().digest_size)


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
    return bytes.fromhex(text.removeprefix(SCHEME)) if _HASH.fullmatch(text) else None


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in `Authorization: Bearer KEY`; None where there is none, or one longer than any key."""
    if authorization is None:
        return None
    match = _BEARER.fullmatch(authorization)
    return match[1] if match and len(match[1]) <= LONGEST_KEY_BYTES else None


class KeyRing:
    """Whose key is it? Digests and the tenants they belong to."""

    __slots__ = ("_owners",)

    def __init__(self, owners: Mapping[bytes, str]) -> None:
        self._owners = {digest: (digest, tenant) for digest, tenant in owners.items()}

    def owner(self, key: bytes) -> str | None:
        """The tenant whose key this is."""
        shown = digest(key)
        kept, tenant = self._owners.get(shown, (_NO_DIGEST, None))
        return tenant if hmac.compare_digest(kept, shown) else None

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._owners)} keys>"
