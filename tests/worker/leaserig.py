"""A router of the tests of a worker's leases: it asks, and reads what it is granted."""

from __future__ import annotations

from itertools import count

from services.contracts.lease import LeaseAsk, LeaseGrant, LeaseWant
from services.runtime.errors import BadInput
from services.runtime.grantstreams import PushedGrants
from services.worker.batching import EngineLoop
from services.worker.job import Job
from services.worker.lending import Lending
from tests.worker.rig import asking

TTL_MS = 750.0


class AskingRouter:
    """One process of a router. Each ask has a higher stamp and acknowledges the last grant that it was given."""

    def __init__(self, name: str = "a", epoch: int = 1) -> None:
        self.name = name
        self.epoch = epoch
        self.last: LeaseGrant | None = None
        self._numbers = count(1)

    def ask(self, wants: int = 0, *, keep: int | None = None, level: float = 0.0) -> LeaseAsk:
        ack = (0, 0) if self.last is None else self.last.stamp
        wanted = [LeaseWant("default", wants, 0, level, level)] if wants else []
        return LeaseAsk(self.name, (self.epoch, next(self._numbers)), ack, keep, wanted, 10.0, TTL_MS)

    def asks(self, lending: Lending, wants: int = 0, *, keep: int | None = None, level: float = 0.0) -> int:
        """It asks alone. Returns what it may use. If its stream has ended, it has a higher epoch from then on."""
        try:
            self.last = lending.answer(self.ask(wants, keep=keep, level=level))
        except BadInput:
            self.epoch += 1
            return 0
        return self.last.may

    def opens(self, lending: Lending) -> PushedGrants:
        return lending.open(self.name, self.epoch)

    async def starts(self, loop: EngineLoop, id: str, tokens: int = 10, *, wants: int = 0, **fields: object) -> Job:
        """It sends a request, with an ask."""
        return await loop.submit(asking(id, tokens, lease=self.ask(wants), **fields))


def may_of(stream: PushedGrants) -> int | None:
    """What the grant allows that is to be sent next; None if there is none."""
    return None if stream._pending is None else stream.take().may


def counted(loop: EngineLoop) -> tuple[int, int]:
    """Requests that the book counts, and those that are here."""
    return loop.lending.book.running, len(loop._jobs) + loop._preparing
