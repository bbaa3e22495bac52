"""What this router has borrowed of one worker, and the asks about it. `LeaseLink` carries them."""

from __future__ import annotations

from collections.abc import Callable

from services.contracts.lease import LeaseAsk, LeaseGrant
from services.core.leases.messages import Ask, Grant
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
        self.is_up = False
        """The stream of its grants is open."""
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
        is_ahead = leases.borrower.is_large and leases.level.is_ahead()
        for _, ask in leases.borrower.end(now, self.name, grant, is_ahead=is_ahead):
            self._send(ask)

    def receive(self, now: float, grant: Grant) -> bool:
        """A grant that came alone. False: it is an old one."""
        return self.leases.borrower.receive(now, self.name, grant)

    def use(self, now: float, *, takes_requests: bool, slots: int) -> None:
        """Whether requests may be sent there, and how many slots it announces. Without a stream they may not."""
        self.leases.borrower.use(now, self.name, usable=takes_requests and self.is_up, slots=slots)

    def disconnect(self, now: float) -> None:
        """The stream of its grants has ended, and the lease with it."""
        self.leases.borrower.disconnect(now, self.name)

    def __repr__(self) -> str:
        return f"<WorkerLease of {self.name}: {self.holding!r}>"
