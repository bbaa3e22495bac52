"""Ids that distinguish requests. They are not secret, so a seeded generator may make them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from random import Random

NewId = Callable[[int], str]
"""Makes an id of this many bytes, in lower-case hex digits."""


def ids_of(rng: Random | None) -> NewId:
    """A maker of ids from this generator, or from the operating system if it is None."""
    if rng is None:
        return secrets.token_hex
    return lambda bytes: rng.randbytes(bytes).hex()
