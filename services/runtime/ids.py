"""Ids that tell requests apart. They keep nothing secret, so a generator that is seeded may make them.

Without one they are the operating system's, which no two processes share.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from random import Random

NewId = Callable[[int], str]
"""Makes an id of so many bytes, in lower-case hex digits."""


def ids_of(rng: Random | None) -> NewId:
    """What makes ids from this generator, or from the operating system where there is none."""
    if rng is None:
        return secrets.token_hex
    return lambda bytes: rng.randbytes(bytes).hex()
