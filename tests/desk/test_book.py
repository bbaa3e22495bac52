"""The book of a desk, call by call: what is counted, what is held, and what is lent again."""

from __future__ import annotations

from itertools import count

import pytest

from services.core.leases.messages import Ask, Want
from services.core.leases.times import DRIFT, MIN_TTL_S
from services.desk.book import LEARN_S, DeskBook

HOLD_S = 10.0
LAPSE_S = MIN_TTL_S * (1 + DRIFT) + 0.001


class Told:
    """A book that has learned, and the processes of routers that ask it."""

    def __init__(self, slots: int, *, learned: bool = True) -> None:
        self.now = 0.0
        self.book = DeskBook(1, slots, HOLD_S)
        self.book.begin(-LEARN_S if learned else 0.0)
        self._numbers = count(1)

    def opens(self, router: str, epoch: int = 1) -> None:
        self.book.open(router, epoch)

    def asks(self, router: str, wants: int, uses: int, *, keep: int | None = None, epoch: int = 1) -> int:
        """Returns what it may use."""
        number = next(self._numbers)
        wanted = (Want("default", wants, 0, 0.0, 0.0),) if wants else ()
        ask = Ask(router, (epoch, number), (9, 10**6), keep, wanted, 1.0, MIN_TTL_S)
        grants = self.book.receive(self.now, ask, number, uses)
        assert grants is not None
        return grants[router].may


def test_slots_are_lent_and_the_end_of_a_request_lends_its_slot_again() -> None:
    told = Told(2)
    told.opens("a")
    told.opens("b")
    assert told.asks("a", 1, 0) == 1
    assert told.asks("a", 1, 1) == 2
    assert told.asks("b", 1, 0) == 0
    assert told.asks("a", 0, 1, keep=1) == 1
    (lease,) = [lease for lease in told.book.leases() if lease.router == "b"]
    assert lease.may == 1, "the slot went to the router that waits"


def test_an_older_count_changes_nothing() -> None:
    told = Told(2)
    told.opens("a")
    told.asks("a", 2, 0)
    ask = Ask("a", (1, 50), (9, 10**6), None, (), 1.0, MIN_TTL_S)
    told.book.receive(0.0, ask, 60, 1)
    told.book.receive(0.0, ask, 59, 0)
    assert [lease.running for lease in told.book.leases()] == [1]


def test_a_process_without_a_stream_is_not_heard() -> None:
    told = Told(2)
    told.opens("a", 5)
    for epoch in (4, 6):
        ask = Ask("a", (epoch, 1), (0, 0), None, (), 1.0, MIN_TTL_S)
        assert told.book.receive(0.0, ask, 1, 0) is None
    told.book.disconnect(0.0, "a", 5)
    assert told.book.receive(0.0, Ask("a", (5, 1), (0, 0), None, (), 1.0, MIN_TTL_S), 1, 0) is None


def test_a_second_stream_of_an_epoch_that_has_ended_is_not_heard_so_that_its_router_opens_another() -> None:
    """The first was given up before it was open, while the desk was frozen. Else it would get nothing for ever."""
    told = Told(2)
    told.opens("a", 5)
    told.book.disconnect(0.0, "a", 5)
    told.opens("a", 5)
    assert told.book.receive(0.0, Ask("a", (5, 1), (0, 0), None, (), 1.0, MIN_TTL_S), 1, 0) is None
    told.book.disconnect(0.0, "a", 5)
    told.opens("a", 6)
    assert told.asks("a", 1, 0, epoch=6) == 1


@pytest.mark.parametrize("how", ["disconnect", "lapse"])
def test_what_a_lost_router_was_lent_is_held_whatever_it_had_said(how: str) -> None:
    told = Told(4)
    told.opens("a")
    told.asks("a", 2, 0)
    told.asks("a", 1, 1)
    assert [(lease.running, lease.may) for lease in told.book.leases()] == [(1, 3)]
    if how == "disconnect":
        told.book.disconnect(told.now, "a", 1)
    told.now = LAPSE_S
    told.book.expire(told.now)
    assert (told.book.held, told.book.promised, told.book.leases()) == (3, 3, [])
    told.now += HOLD_S
    assert told.book.wakes_at() <= told.now
    told.book.expire(told.now)
    assert (told.book.held, told.book.promised) == (0, 0)


def test_a_router_that_comes_back_keeps_what_it_says_and_no_more() -> None:
    told = Told(4)
    told.opens("a")
    told.asks("a", 2, 0)
    told.asks("a", 2, 2)
    told.asks("a", 0, 4)
    told.book.disconnect(0.0, "a", 1)
    assert told.book.held == 4
    told.opens("a", 2)
    told.asks("a", 0, 3, epoch=2)
    assert (told.book.held, told.book.promised) == (0, 3)
    assert [lease.running for lease in told.book.leases()] == [3], "in its lease, so that the next slot is of use"
    assert told.asks("a", 1, 3, epoch=2) == 4


def test_a_new_process_of_the_name_frees_what_its_predecessor_had() -> None:
    told = Told(2)
    told.opens("a")
    told.asks("a", 1, 0)
    told.asks("a", 0, 1)
    told.book.disconnect(0.0, "a", 1)
    told.opens("a", 1000)
    told.asks("a", 0, 0, epoch=1000)
    assert told.book.promised == 0


def test_a_desk_that_starts_counts_and_lends_nothing_until_it_has_learned() -> None:
    told = Told(4, learned=False)
    told.opens("a")
    assert told.asks("a", 2, 3) == 0
    assert told.book.promised == 3
    told.now = LEARN_S - 0.1
    assert told.asks("a", 2, 3) == 0
    told.now = LEARN_S
    assert told.asks("a", 2, 3) == 4
    assert told.book.promised == 4


def test_more_than_there_are_slots_is_counted_up_to_the_slots() -> None:
    told = Told(2)
    told.opens("a")
    told.asks("a", 0, 1_000_000)
    assert told.book.promised == 2
