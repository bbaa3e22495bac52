"""A worker's slots, lent to several routers: the book (`core.leases.book`) and the routers' streams of grants.

A request holds its slot as a `Loan`, from its arrival to its end. Requests without an ask (of one router that stands
alone, of a person with curl) are counted, and change nothing while no router has a lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.contracts.lease import LeaseAsk, LeaseGrant
from services.core.leases.book import LeaseBook
from services.core.leases.messages import Grant
from services.runtime.clock import unix_milliseconds
from services.runtime.errors import BadInput
from services.runtime.grantstreams import GrantStreams, loop_time
from services.runtime.leasewire import ask_of, wire_grant


@dataclass(eq=False, slots=True)
class Loan:
    """One request's slot, as the book counts it. `router` is empty for a request without an ask.

    `grant` is that of the request's end, for its own router, until an answer or the stream takes it along.
    """

    router: str = ""
    epoch: int = 0
    grant: Grant | None = None


class Lending(GrantStreams):
    """What one worker lends. `epoch`: when the worker started, in milliseconds since 1970; by default now."""

    def __init__(self, epoch: int | None = None) -> None:
        self.book = LeaseBook(unix_milliseconds() if epoch is None else epoch, 0)
        super().__init__(self.book)

    # Asks

    def answer(self, sent: LeaseAsk) -> LeaseGrant:
        """An ask that came alone: its answer. Grants of others are pushed. Raises BadInput, 409, if the stream of its
        process has ended here: a router that has not noticed, since the link was cut, opens another.
        """
        ask = ask_of(sent)
        if self.book.is_over(ask):
            raise BadInput(
                f"stamp: the stream of {ask.router} with epoch {ask.stamp[0]} has ended", "stamp", status=409,
                code="no_stream",
            )  # fmt: skip
        grants = self.book.receive(loop_time(), ask)
        own = grants.pop(ask.router)
        self.note(ask.router, own)
        self.push_all(grants)
        return wire_grant(own)

    def receive(self, sent: LeaseAsk) -> None:
        """An ask that came with a request. Its own grant is pushed only if it changes what the router may use: else the
        request's answer, or that of the next ask, brings a newer one.
        """
        ask = ask_of(sent)
        grants = self.book.receive(loop_time(), ask)
        own = grants.pop(ask.router)
        stream = self.stream_for(ask.router, own)
        if stream is not None and not _is_same(own, stream.last):
            stream.offer(own)
        self.push_all(grants)

    # Requests

    def borrow(self, sent: LeaseAsk | None) -> Loan | None:
        """A slot for a request that arrives, with its ask, which was received. None: there is no slot for it."""
        if sent is None:
            loan, grants = Loan(), self.book.start_without_lease(loop_time())
        else:
            loan = Loan(sent.router, sent.stamp[0])
            grants = self.book.start(loop_time(), loan.router, loan.epoch)
        if grants is None:
            return None
        self.push_all(grants)
        return loan

    def give_back(self, loan: Loan) -> None:
        """The request has ended, for any reason: once for each loan. `loan.grant` is what its answer should carry."""
        if not loan.router:
            grants = self.book.end_without_lease(loop_time())
        else:
            grants = self.book.end(loop_time(), loan.router, loan.epoch)
            own = grants.get(loan.router)
            if own is not None and own.echo[0] == loan.epoch:  # else it is for another process of this name
                loan.grant = grants.pop(loan.router)
                self.note(loan.router, own)
        self.push_all(grants)
        if self.is_leaving:
            self._end_idle_streams()

    def push_rest(self, loan: Loan) -> None:
        """Push the grant of a request's end that no answer has carried."""
        grant, loan.grant = loan.grant, None
        if grant is not None:
            self.push(loan.router, grant)

    # Slots

    def resize(self, slots: int) -> None:
        """Set the number of slots; 0 while there is no engine. Nothing is taken back before requests end."""
        if slots != self.book.slots:
            self.push_all(self.book.resize(loop_time(), slots))

    def leave(self) -> None:
        """The worker drains: it recalls what is idle. The streams end with the last request."""
        self.is_leaving = True
        self.resize(0)
        self._end_idle_streams()

    def _end_idle_streams(self) -> None:
        if not self.book.running:
            self.end_streams()


def _is_same(grant: Grant, last: Grant | None) -> bool:
    """Whether it lets the router use what the last grant let it use."""
    return last is not None and (grant.may, grant.recall) == (last.may, last.recall)
