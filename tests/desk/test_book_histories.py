"""Whatever is lost, late, repeated, killed, cut off or restarted: no more requests are at a server than its slots."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.contracts.lease import EndedRequest
from services.desk.learned import LearnedSlots
from tests.desk.history import History


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), slots=st.integers(1, 6))
def test_no_more_requests_are_at_the_server_than_its_slots(seed: int, slots: int) -> None:
    """With routers that are killed, lose their host, or are cut off from the desk; every message may be lost."""
    plays(History(seed, slots=slots), restarts=False)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), slots=st.integers(1, 6))
def test_nor_when_the_desk_is_restarted_while_all_routers_reach_it(seed: int, slots: int) -> None:
    plays(History(seed, slots=slots), restarts=True)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), slots=st.integers(1, 12), restarts=st.booleans())
def test_nor_than_the_slots_that_a_desk_has_learned(seed: int, slots: int, restarts: bool) -> None:
    """While they shrink, no more than were promised before; the number that is promised then only falls."""
    plays(History(seed, slots=slots, learns=lambda most: Restless(most, seed)), restarts=restarts)


class Restless(LearnedSlots):
    """It changes its mind with each message."""

    def __init__(self, max_slots: int, seed: int) -> None:
        super().__init__(max_slots)
        self._chance = Random(seed)
        self._now = 1

    @property
    def slots(self) -> int:
        return self._now

    def learn(self, in_flight: int, ended: Sequence[EndedRequest], overloaded: int) -> None:
        super().learn(in_flight, ended, overloaded)
        self._now = self._chance.randint(1, self.max_slots)


def plays(history: History, *, restarts: bool) -> None:
    for _ in range(40):
        history.step(restarts=restarts)
    history.heal()
    left = {name: router.waiting for name, router in history.routers.items()}
    assert not any(left.values()), f"once nothing breaks any more, all work is done: {left}, {history.desk}"
    assert not history.at_server
    history.run(2.0)
    assert history.desk.promised == 0, f"nothing is held for ever: {history.desk}"
