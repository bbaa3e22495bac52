"""What this router has borrowed of one worker, and the asks about it. `LeaseLink` carries them.

A desk lends slots of a server that cannot lend. It sees neither requests nor answers: the ask of a request is sent to
it alone, and the end of each gives its slot back, with an ask for the next one. So the desk decides at each end who has
the slot next, as a worker does, and the slot is idle for a trip there and back. It may learn how many slots the server
has, so it is told how the requests ended, too: with the next message, and of more than MAX_ENDED the last ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from services.contracts.lease import MAX_ENDED, EndedRequest, LeaseAsk, LeaseGrant
from services.core.leases.messages import Ask, Grant
from services.core.leases.poolleases import PoolLeases
from services.core.leases.times import MIN_TTL_S
from services.runtime.leasewire import grant_of, wire_ask


class WorkerLease:
    """The lease of one worker, in the first pool that it serves. `name` tells it from all others.

    `send` takes the asks that no request takes along: all of them, if a desk lends its slots.
    """

    def __init__(self, name: str, leases: PoolLeases, send: Callable[[Ask], None], *, is_of_desk: bool = False) -> None:
        self.name = name
        self.leases = leases
        self.holding = leases.borrower.holdings[name]
        self.is_up = False
        """The stream of its grants is open."""
        self._send = send
        self.is_of_desk = is_of_desk
        self._ended: deque[EndedRequest] = deque(maxlen=MAX_ENDED)
        self._overloaded = 0

    def start(self, now: float) -> None:
        """A request takes a slot there. Raises AssertionError without one."""
        self.leases.borrower.start(now, self.name)

    def ask(self, now: float) -> LeaseAsk | None:
        """The ask that a request takes along; None if it has been sent to the desk."""
        ask = self._ask_with_request(now)
        if not self.is_of_desk:
            return wire_ask(ask)
        self._send(ask)
        return None

    def end(self, now: float, sent: LeaseGrant | None) -> None:
        """A request ended there, with the grant of its answer if there was one."""
        leases, grant = self.leases, None if sent is None else grant_of(sent)
        is_ahead = leases.borrower.is_large and leases.level.is_ahead(now)
        for _, ask in leases.borrower.end(now, self.name, grant, wants=leases.last_wants, is_ahead=is_ahead):
            self._send(ask)

    def note_end(self, ended: EndedRequest, *, overloaded: bool) -> None:
        """What to tell a desk of a request, before `end`."""
        if overloaded:
            self._overloaded = min(self._overloaded + 1, MAX_ENDED)
        else:
            self._ended.append(ended)

    def message(self, ask: Ask, number: int) -> LeaseAsk:
        """The ask as a desk gets it, with its number on the stream and what there is to tell as of now: an end since
        the ask was made has made a newer one. What a message that is lost has told is not told again.
        """
        sent = wire_ask(ask, (number, self.holding.uses), self._ended, self._overloaded)
        self._ended.clear()
        self._overloaded = 0
        return sent

    def receive(self, now: float, grant: Grant) -> bool:
        """A grant that came alone. False: it is an old one."""
        return self.leases.borrower.receive(now, self.name, grant)

    def use(self, now: float, *, takes_requests: bool, slots: int) -> None:
        """Whether requests may be sent there, and how many slots it announces. Without a stream they may not."""
        known = None if self.is_of_desk else slots  # a desk says it in its grants
        self.leases.borrower.use(now, self.name, usable=takes_requests and self.is_up, slots=known)

    def ask_alone(self, now: float, *, keep: int | None = None) -> Ask:
        """An ask that wants nothing. `keep`: what is above it goes back."""
        return self.holding.ask(now, (), quantum=self.leases.borrower.quantum, ttl_s=MIN_TTL_S, keep=keep)

    def _ask_with_request(self, now: float) -> Ask:
        """It wants this worker's part of what waits."""
        return self.leases.borrower.ask_with_request(now, self.name, self.leases.last_wants)

    def disconnect(self, now: float) -> None:
        """The stream of its grants has ended, and the lease with it."""
        self.leases.borrower.disconnect(now, self.name)

    def __repr__(self) -> str:
        return f"<WorkerLease of {self.name}: {self.holding!r}>"
