"""A budget of bytes or connections, in all and for one source.

A source is a client's IPv4 address or IPv6 /64 network, the least that one customer gets (RFC 6177). A Unix socket has
no source. Behind a proxy all clients are one source, whose share an operator sets to 1.
"""

from __future__ import annotations

import socket
from collections import Counter

ALL_SOURCES, SOURCE = "all", "source"
IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


class Budget:
    """An amount that is reserved and released. Sources that hold nothing are not remembered."""

    __slots__ = ("_by_source", "limit", "max_per_source", "taken")

    def __init__(self, limit: int, max_per_source: int | None = None) -> None:
        self.limit = limit
        self.max_per_source = limit if max_per_source is None else min(limit, max_per_source)
        self.taken = 0
        self._by_source: Counter[bytes] = Counter()

    def reserve(self, source: bytes | None, amount: int) -> str | None:
        """Reserve this much. Returns None, or the bound it would exceed (ALL_SOURCES, SOURCE) and reserves nothing."""
        if self.taken + amount > self.limit:
            return ALL_SOURCES
        if source is not None:
            held = self._by_source[source] + amount
            if held > self.max_per_source:
                return SOURCE
            self._by_source[source] = held
        self.taken += amount
        return None

    def release(self, source: bytes | None, amount: int) -> None:
        """Release what this source has reserved."""
        self.taken -= amount
        assert self.taken >= 0, f"{amount} were given back twice: {self!r}"
        if source is not None:
            held = self._by_source[source] = self._by_source[source] - amount
            assert held >= 0, f"one source gave back {amount} that another took: {self!r}"
            if not held:
                del self._by_source[source]

    def held_by(self, source: bytes) -> int:
        """What this source has reserved."""
        return self._by_source[source]

    def __repr__(self) -> str:
        return f"<Budget {self.taken} of {self.limit}, {len(self._by_source)} sources>"


def bound_text(bound: str, what: str) -> tuple[str, str]:
    """What an error message adds for the bound that `reserve` returned, and the reason for programs."""
    return ("", what) if bound is ALL_SOURCES else (" from this address", f"source_{what}")


def source_of(peer: object) -> bytes | None:
    """The source of a connection, from its `peername`. None for a Unix socket and for other non-addresses."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return None
    address = str(peer[0])
    try:
        if ":" not in address:
            return socket.inet_pton(socket.AF_INET, address)
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except OSError:
        return None
    return packed[12:] if packed.startswith(IPV4_IN_IPV6) else packed[:8]
