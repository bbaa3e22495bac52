"""Whatever is lost, late, repeated, killed, cut off or restarted: no more requests are at a server than its slots."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

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


def plays(history: History, *, restarts: bool) -> None:
    for _ in range(40):
        history.step(restarts=restarts)
    history.heal()
    left = {name: router.waiting for name, router in history.routers.items()}
    assert not any(left.values()), f"once nothing breaks any more, all work is done: {left}, {history.desk}"
    assert not history.at_server
    history.run(2.0)
    assert history.desk.promised == 0, f"nothing is held for ever: {history.desk}"
