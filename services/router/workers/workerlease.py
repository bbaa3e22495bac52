"""What this router has borrowed of one worker, and the asks about it. `LeaseLink` carries them."""

from __future__ import annotations

from collections.abc import Callable

from services.contracts.lease import LeaseAsk, LeaseGrant
from services.core.leases.borrower import SMALL_POOL
from services.core.leases.messages import Ask
from services.core.leases.poolleases import PoolLeases
from services.runtime.leasewire import grant_of, wire_ask


class WorkerLease:
    """The lease of one worker, in the first pool that it serves. `name` tells it from all others.

    `send` takes the asks that no request takes along.
    """

    def __init__(self, name: str, leases: PoolLeases, send: Callable[[Ask], None]) -> None:
        self.name = name
        self.leases = leases
        self.holding = leases.borrower.holdings[name]
        self._send = send

    def start(self, now: float) -> None:
        """A request takes a slot there. Raises AssertionError without one."""
        self.leases.borrower.start(now, self.name)

    def ask(self, now: float) -> LeaseAsk:
        """The ask that a request takes along."""
        leases = self.leases
        return wire_ask(leases.borrower.ask_with_request(now, self.name, leases.last_wants))

    def end(self, now: float, sent: LeaseGrant | None) -> None:
        """A request ended there, with the grant of its answer if there was one."""
        leases, grant = self.leases, None if sent is None else grant_of(sent)
        is_ahead = len(leases.borrower.holdings) > SMALL_POOL and leases.level.is_ahead()
        for _, ask in leases.borrower.end(now, self.name, grant, is_ahead=is_ahead):
            self._send(ask)

    def __repr__(self) -> str:
        return f"<WorkerLease of {self.name}: {self.holding!r}>"
