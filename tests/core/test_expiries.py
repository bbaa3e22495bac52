"""Requests expire in the order of their times, whatever joined, moved and left; and few stale entries are kept."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from services.core.expiries import MIN_STALE, Expiries
from services.core.request import ENDED, WAITING, Request

ACTS = st.lists(
    st.tuples(st.sampled_from(["join", "join", "join", "move", "leave", "look", "pop"]), st.integers(0, 30)),
    max_size=400,
)


@given(ACTS)
def test_requests_expire_in_the_order_of_their_times_and_stale_entries_are_counted_exactly(
    acts: list[tuple[str, int]],
) -> None:
    expiries, queued = Expiries(), dict[Request, tuple[float, int]]()
    for sequence, (what, number) in enumerate(acts, 1):
        chosen = list(queued)[number % len(queued)] if queued else None
        if what == "join":
            request = Request(sequence, "a", 0.0, 1.0, prompt_tokens=1, max_tokens=1)
            request.stage, request.expires_at, request.sequence = WAITING, float(number), sequence
            expiries.fresh.append(request)
            queued[request] = float(number), sequence
        elif what == "look":
            assert expiries.earliest() == min((at for at, _ in queued.values()), default=inf)
        elif what == "pop":
            first = min(queued, key=lambda each: queued[each], default=None)
            due = None if first is None or queued[first][0] > number else first
            assert expiries.pop(float(number)) is due
            if due is not None:
                due.stage = ENDED
                del queued[due]
        elif chosen is not None and what == "leave":
            del queued[chosen]
            chosen.stage = ENDED
            expiries.drop()
        elif chosen is not None and chosen.expires_at != number:
            queued[chosen] = float(number), sequence
            expiries.move(chosen, float(number), sequence)
        assert len(expiries) == len(queued) + expiries._stale
        assert len(expiries) <= 2 * len(queued) + 2 * MIN_STALE + 1


def test_a_hundred_thousand_requests_that_leave_at_once_leave_nothing_behind() -> None:
    expiries = Expiries()
    for number in range(100_000):
        request = Request(number, "a", 0.0, 1.0, prompt_tokens=1, max_tokens=1)
        request.stage = WAITING
        expiries.fresh.append(request)
        request.stage = ENDED
        expiries.drop()
        assert len(expiries) <= 2 * MIN_STALE + 1
