"""The slots of a server of unknown capacity, learned once for all routers from what they tell of ended requests.

It is the adaptive limit of a router that is alone (`core.adaptive`, `core.pace`). Limits of several routers would each
take the others' congestion for their own, and each would learn its baseline while the others load the server. It grows
only while as many requests as slots are in flight, by what routers tell, those of routers that are gone included: a
slot that is lent and not used yet is no sign that more could be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.contracts.lease import EndedRequest
from services.core.adaptive import AdaptiveLimit
from services.core.pace import Pace

MIN_SLOTS = 1


class LearnedSlots:
    """Between MIN_SLOTS and `max_slots`. Raises ValueError for `max_slots` below MIN_SLOTS."""

    def __init__(self, max_slots: int) -> None:
        self._limit = AdaptiveLimit(min_limit=MIN_SLOTS, max_limit=max_slots)
        self._pace = Pace()

    @property
    def slots(self) -> int:
        """What the server takes now, as far as is known."""
        return self._limit.cap

    @property
    def max_slots(self) -> int:
        return self._limit.max_limit

    def learn(self, in_flight: int, ended: Sequence[EndedRequest], overloaded: int) -> None:
        """These requests have ended, and others that were refused for lack of capacity, or not answered. `in_flight`:
        how many there were before, over all routers.
        """
        limit = self._limit
        limit.count(in_flight)
        for seconds, prompt_tokens, completion_tokens in ended:
            alone = limit.cap == limit.min_limit and in_flight <= limit.min_limit
            limit.learn(self._pace.of(seconds, prompt_tokens, completion_tokens, alone=alone))
        for _ in range(overloaded):
            limit.learn(overloaded=True)

    def __repr__(self) -> str:
        return f"<LearnedSlots {self._limit!r}, {self._pace!r}>"
