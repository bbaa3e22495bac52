"""What a desk lends of one server: its book, and the routers' streams of grants."""

from __future__ import annotations

from services.contracts.lease import LeaseAsk, LeaseGrant
from services.desk.book import DeskBook
from services.desk.learned import LearnedSlots
from services.runtime.clock import unix_milliseconds
from services.runtime.errors import BadInput
from services.runtime.grantstreams import GrantStreams, PushedGrants, loop_time
from services.runtime.leasewire import ask_of, wire_grant


class DeskLending(GrantStreams):
    """`slots`: a number, or what learns it. `epoch`: when the desk started, in milliseconds since 1970; else now."""

    service = "desk"

    def __init__(self, slots: int | LearnedSlots, hold_s: float, epoch: int | None = None) -> None:
        self.book = DeskBook(unix_milliseconds() if epoch is None else epoch, slots, hold_s)
        super().__init__(self.book)

    def open(self, router: str, epoch: int) -> PushedGrants:
        """As `GrantStreams.open`."""
        stream = super().open(router, epoch)
        self.book.open(router, epoch)
        return stream

    def answer(self, sent: LeaseAsk) -> LeaseGrant:
        """An ask: its answer. Grants of others are pushed. Raises BadInput without a count (400), or if its process has
        no stream here (409), which is how a desk knows who is there.
        """
        if sent.count is None:
            raise BadInput(
                "count: is missing; a desk does not see the requests, and is told how many there are", "count"
            )
        ask = ask_of(sent)
        grants = self.book.receive(loop_time(), ask, *sent.count, sent.ended, sent.overloaded)
        if grants is None:
            raise BadInput(
                f"stamp: {ask.router} has no stream open of epoch {ask.stamp[0]}", "stamp", status=409, code="no_stream"
            )
        own = grants.pop(ask.router)
        self.note(ask.router, own)
        self.push_all(grants)
        return wire_grant(own)
