"""The crowd: everybody comes at their own time, whatever became of those before them.

A person makes an attempt, waits as long as they have patience, and leaves by closing the connection; or is refused,
and comes back at once or when they were told to. Each attempt is measured from the moment it was meant to be sent, so
that what this process is late by is counted, not hidden.

Three bounds hold whatever the plan says: attempts a second, attempts under way, and people who wait to come back.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from loadtests.storm.arrivals import Arrival
from loadtests.storm.door import Attempt, Door, DoorLost
from loadtests.storm.ledger import Ended, Ending, Ledger
from loadtests.storm.plan import MOST_CONNECTIONS, MOST_RATE_PER_S, Manners
from services.core.bucket import Bucket

BURST_S = 0.1
"""So much of a second's attempts may leave in one instant."""
MOST_RETURNING = 5000
AT_ONCE_S = 0.05
"""What "at once" is for a program: it has noticed, and asks again within this."""
REFUSING = (429, 503)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no plan can pass."""

    rate_per_s: float = MOST_RATE_PER_S
    connections: int = MOST_CONNECTIONS
    returning: int = MOST_RETURNING


class Crowd:
    """The people of one run."""

    def __init__(self, manners: Manners, door: Door, ledger: Ledger, bounds: Bounds, seed: int = 1) -> None:
        self._manners = manners
        self._door = door
        self._ledger = ledger
        self._bounds = bounds
        self._chance = random.Random(f"{seed}:manners")
        self._bucket = Bucket(bounds.rate_per_s, max(1.0, bounds.rate_per_s * BURST_S))
        self._people: set[asyncio.Task[None]] = set()
        self._numbers = count(1)
        self._began_at: float | None = None
        self._under_way = self._returning = 0
        self._open_to_new = True
        self._fault: BaseException | None = None

    async def come(self, arrivals: Iterator[Arrival]) -> None:
        """Everybody comes, each at their time. Returns with the last of them, whose answers may still be on the way."""
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        for arrival in arrivals:
            due_in_s = arrival.at_s - self.now_s
            if due_in_s > 0:
                await asyncio.sleep(due_in_s)
            elif len(self._people) > self._bounds.connections + self._bounds.returning:
                await asyncio.sleep(0)  # far behind: those who are here must be heard, too
            person = loop.create_task(self._person(arrival))
            self._people.add(person)
            person.add_done_callback(self._gone_home)

    async def settle(self, within_s: float) -> None:
        """Nobody comes back any more, and what is under way may end; what has not by then is left."""
        self._open_to_new = False
        if self._people:
            await asyncio.wait(set(self._people), timeout=within_s)
        await self.leave()

    async def leave(self) -> None:
        """Everybody goes away at once. What was under way ends as `gone`."""
        self._open_to_new = False
        people = set(self._people)
        for person in people:
            person.cancel()
        if people:
            await asyncio.wait(people)
        self._door.close()

    @property
    def now_s(self) -> float:
        """Seconds since the first could come."""
        return 0.0 if self._began_at is None else asyncio.get_running_loop().time() - self._began_at

    def check(self) -> None:
        """Raise what went wrong in here, if anything did: it must not look like a quiet server."""
        if self._fault is not None:
            raise self._fault

    def _gone_home(self, person: asyncio.Task[None]) -> None:
        self._people.discard(person)
        if not person.cancelled() and self._fault is None:
            self._fault = person.exception()

    async def _person(self, arrival: Arrival) -> None:
        manners, tenant = self._manners, arrival.tenant
        patience_s = self._patience_s()
        self._ledger.asked(tenant)
        meant_s = arrival.at_s
        for tried_before in range(manners.retries + 1):
            if not self._may_send():
                self._ledger.held_back(tenant, meant_s)
                return
            end, again_in_s = await self._attempt(tenant, meant_s, patience_s, tried_before)
            if end is Ending.ON_TIME:
                self._ledger.answered(tenant)
            if again_in_s is None or tried_before == manners.retries or not await self._wait(again_in_s):
                return
            meant_s = self.now_s

    async def _attempt(
        self, tenant: str, meant_s: float, patience_s: float, tried_before: int
    ) -> tuple[Ending, float | None]:
        """Its ending, and in how many seconds this person would try again; None: not."""
        self._ledger.sent(tenant, meant_s, self.now_s - meant_s)
        self._under_way += 1
        ended, again_in_s = Ended(Ending.GONE), None
        try:
            ended, again_in_s = await self._asked(tenant, meant_s, patience_s, tried_before)
        finally:
            self._under_way -= 1
            self._ledger.ended(tenant, self.now_s, ended)
        return ended.ending, again_in_s

    async def _asked(
        self, tenant: str, meant_s: float, patience_s: float, tried_before: int
    ) -> tuple[Ended, float | None]:
        attempt = Attempt(tenant, next(self._numbers), self._manners.deadline_s, tried_before)
        try:
            async with asyncio.timeout(meant_s + patience_s - self.now_s):
                answer = await self._door.ask(attempt)
        except TimeoutError:
            return Ended(Ending.GONE), self._at_once_s()
        except DoorLost as lost:
            return Ended(Ending.FAILED, str(lost)), self._at_once_s()
        latency_s = self.now_s - meant_s
        if answer.served:
            ending = Ending.ON_TIME if latency_s <= self._manners.deadline_s else Ending.LATE
            return Ended(ending, latency_s=latency_s, source=answer.source), None
        if answer.status not in REFUSING:
            return Ended(Ending.FAILED, answer.code), self._at_once_s()
        again_in_s = self._at_once_s()
        if self._manners.obeys_hints:
            again_in_s = (answer.hint_s or 0.0) if answer.should_retry else math.inf
        return Ended(Ending.REFUSED, answer.code), None if math.isinf(again_in_s) else again_in_s

    def _may_send(self) -> bool:
        if self._under_way >= self._bounds.connections:
            return False
        return self._bucket.try_take(asyncio.get_running_loop().time())

    async def _wait(self, seconds: float) -> bool:
        """Until this person comes back; False where they do not."""
        if not self._open_to_new or self._returning >= self._bounds.returning:
            return False
        self._returning += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._returning -= 1
        return self._open_to_new

    def _at_once_s(self) -> float:
        return self._chance.uniform(0.0, AT_ONCE_S)

    def _patience_s(self) -> float:
        manners = self._manners
        if self._chance.random() < manners.leaving_share:
            return manners.deadline_s * self._chance.uniform(0.1, 0.5)
        return manners.patience_s
