"""Whose key is it? A secret names its tenant, and is written down nowhere (`runtime/apikey.py`).

**Looking up by hash leaks nothing.** Comparing keys byte by byte tells by its time how much of a guess was right. Here
a dictionary is asked for the hash of the guess. Its time may depend on the hash, but a guesser does not choose hashes:
to have the first n bits right costs 2^n tries, and having them all would still mean a second preimage, not the key.
What is found is compared once more, whole, in constant time (`hmac.compare_digest`, on bytes: on text it fails for
anything but ASCII). A wrong key costs what a right one does, one hash and one comparison, and leaves nothing behind.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from services.runtime.apikey import digest

LONGEST_KEY_BYTES = 256

EXAMPLE_KEYS = ("weir_example_demo", "weir_example_acme", "weir_example_nightly")
"""Those of tenants.example.yaml. Everybody can read them, so only a lab may have them."""

_BEARER = re.compile(rb"bearer[ \t]+([^ \t]+)", re.IGNORECASE)
_NO_DIGEST = bytes(len(digest(b"")))


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in `Authorization: Bearer KEY`; None where there is none, or one longer than any key."""
    if authorization is None:
        return None
    match = _BEARER.fullmatch(authorization.strip())
    return match[1] if match and len(match[1]) <= LONGEST_KEY_BYTES else None


class KeyRing:
    """Digests of keys, and the tenants they belong to."""

    __slots__ = ("_owners",)

    def __init__(self, owners: Mapping[bytes, str]) -> None:
        self._owners = {kept: (kept, tenant) for kept, tenant in owners.items()}

    def owner(self, key: bytes) -> str | None:
        """The tenant whose key this is."""
        shown = digest(key)
        kept, tenant = self._owners.get(shown, (_NO_DIGEST, None))
        return tenant if hmac.compare_digest(kept, shown) else None

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._owners)} keys>"
