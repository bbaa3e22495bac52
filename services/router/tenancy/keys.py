"""Maps a secret key to its tenant. Only digests are stored (`runtime/apikey.py`).

The lookup leaks nothing by its time: it depends on the guess's hash, and a guesser cannot choose hashes; the first n
bits cost 2^n tries, and all of them would still need a second preimage. The result is compared once more in constant
time (`hmac.compare_digest`, on bytes, since on text it fails for anything but ASCII). A wrong key costs as much as a
right one, one hash and one comparison, and leaves no state.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from services.runtime.apikey import digest

LONGEST_KEY_BYTES = 256

EXAMPLE_KEYS = ("weir_example_demo", "weir_example_acme", "weir_example_nightly")
"""The public keys of tenants.example.yaml, for labs only."""

_BEARER = re.compile(rb"bearer[ \t]+([^ \t]+)", re.IGNORECASE)
_NO_DIGEST = bytes(len(digest(b"")))


def bearer(authorization: bytes | None) -> bytes | None:
    """The key in `Authorization: Bearer KEY`; None if it is missing or longer than LONGEST_KEY_BYTES."""
    if authorization is None:
        return None
    match = _BEARER.fullmatch(authorization.strip())
    return match[1] if match and len(match[1]) <= LONGEST_KEY_BYTES else None


class KeyRing:
    __slots__ = ("_owners",)

    def __init__(self, owners: Mapping[bytes, str]) -> None:
        self._owners = {kept: (kept, tenant) for kept, tenant in owners.items()}

    def owner(self, key: bytes) -> str | None:
        shown = digest(key)
        kept, tenant = self._owners.get(shown, (_NO_DIGEST, None))
        return tenant if hmac.compare_digest(kept, shown) else None

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._owners)} keys>"
