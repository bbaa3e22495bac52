"""What all connections of one listener share (decision record 044)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.runtime.arrival import Arrivals
from services.runtime.budget import ALL_SOURCES, Budget
from services.runtime.errors import WeirError
from services.runtime.guard import GuardLimits
from services.runtime.http import App, HeadCheck
from services.runtime.ids import NewId, ids_of
from services.runtime.write_coalescer import WriteCoalescer

if TYPE_CHECKING:
    from services.runtime.connection import Connection

MAX_INSPECTED = 16  # connections per newcomer, in search of an idle one
IDLE_FOR_LONG_S = 1.0  # before an idle connection may be closed for a newcomer


def _ignore_refusal(refusal: WeirError, id: str) -> None:
    pass


@dataclass(slots=True)
class Shared:
    app: App
    limits: GuardLimits
    idle_timeout_s: float
    refused: Callable[[WeirError, str], None] = _ignore_refusal
    checks: tuple[HeadCheck, ...] = ()
    writes: WriteCoalescer = field(default_factory=WriteCoalescer)
    arrivals: Arrivals = field(default_factory=Arrivals)
    connections: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)  # in the order in which they began
    new_id: NewId = field(default_factory=lambda: ids_of(None))
    date_line: bytes = b""
    closed: bool = False  # the listener is closed; a connection accepted before that may still arrive
    places: Budget = field(init=False)
    incoming: Budget = field(init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.places = Budget(limits.connections, limits.connections_per_source)
        self.incoming = Budget(limits.incoming_bytes, limits.incoming_bytes_per_source)

    def register(self, newcomer: Connection, source: bytes | None, now: float) -> str | None:
        """Take a place for a connection. Returns None, or the bound that is reached (ALL_SOURCES or SOURCE)."""
        bound = self.places.reserve(source, 1)
        if bound is ALL_SOURCES and self._make_room(now):
            bound = self.places.reserve(source, 1)
        self.connections[newcomer] = None
        return bound

    def _make_room(self, now: float) -> bool:
        """Close the connection idle for the longest time, at least IDLE_FOR_LONG_S.

        `connections` is ordered by when each was made or last answered; at most MAX_INSPECTED busy ones move to its
        end. Connections in use are safe from a client that opens ever more.
        """
        connections = self.connections
        for _ in range(min(MAX_INSPECTED, len(connections))):
            connection = next(iter(connections))
            if connection.idle:
                if now - connection.idle_since < IDLE_FOR_LONG_S:
                    return False
                connection.close_for_newcomer()
                connections.move_to_end(connection)
                return True
            connections.move_to_end(connection)
        return False
