"""What one router has been lent by a worker."""

from __future__ import annotations

from math import inf

from services.core.leases.messages import NEVER, Stamp, Want
from services.core.leases.times import MIN_TTL_S
from services.core.leases.turn import Claim


class BookedLease:
    """Of one process of the router: its successor has a lease of its own."""

    __slots__ = (
        "acknowledged",
        "echo",
        "epoch",
        "granted",
        "is_deaf",
        "lapses_at",
        "may",
        "quantum",
        "recalled",
        "received",
        "received_at",
        "router",
        "running",
        "ttl_s",
        "unacknowledged_since",
        "wants",
    )

    def __init__(self, router: str, epoch: int) -> None:
        self.router = router
        self.epoch = epoch
        self.received: Stamp = NEVER
        """The last ask."""
        self.received_at = 0.0
        self.echo: Stamp = NEVER
        """The last ask that prolonged it."""
        self.granted: Stamp = NEVER
        """The last grant."""
        self.acknowledged: Stamp = NEVER
        """The last grant that its router had received."""
        self.unacknowledged_since = inf
        """When the first grant after the last acknowledged one was made; infinity if there is none."""
        self.is_deaf = False
        """It has not shown yet that it receives grants again."""
        self.may = 0
        self.running = 0
        self.lapses_at = -inf
        self.ttl_s = MIN_TTL_S
        self.wants: tuple[Want, ...] = ()
        self.quantum = 0.0
        self.recalled = False
        """Its idle slots were recalled since its last ask."""

    @property
    def promised(self) -> int:
        return self.may if self.may > self.running else self.running

    @property
    def wanted(self) -> int:
        return sum([want.requests for want in self.wants])

    def claim(self, want: Want) -> Claim:
        return Claim(self.router, self.promised, self.wanted, want)

    def __repr__(self) -> str:
        wants = {want.class_name: want.requests for want in self.wants}
        return f"<BookedLease of {self.router}/{self.epoch}: {self.running} run, may {self.may}, wants {wants}>"
