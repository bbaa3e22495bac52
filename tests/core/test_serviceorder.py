"""The order of a ring's next visits, as it is told to people: it is the order in which they then come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.core.ring import Ring
from services.core.schedulable import RingPosition
from services.core.serviceorder import service_order
from services.core.singleclass import SingleClass
from tests.core.test_ring import Named, crowd, pay, ring, start
from tests.pythoncore import python_core

pytestmark = python_core


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), min_size=1, max_size=40), st.integers(0, 3))
def test_the_order_that_is_told_is_the_order_of_the_next_visits(history: list[tuple[int, int]], newcomers: int):
    of = ring(quantum=10.0)
    crowd(of, "abcdef"[: 6 - newcomers])
    for refund, cost in history:
        member = start(of, float(cost))
        if refund == 5:
            of.settle(0.0, member, cost / 2)
    crowd(of, "xyz"[:newcomers])
    told = service_order(of, 10)
    visited: dict[Named, None] = {}
    while len(visited) < 6:
        visited.setdefault(start(of, 10.0))
    assert [member for member, _ in told] == list(visited)
    assert [turn for _, turn in told[:newcomers]] == [RingPosition.NEW] * newcomers


def test_of_a_long_round_only_the_first_are_told():
    of = ring()
    first, *_ = crowd(of, "abcdefgh")
    assert [member.name for member, _ in service_order(of, 3)] == ["a", "b", "c"]
    pay(of, first, 95.0)
    assert [(member.name, turn) for member, turn in service_order(of, 8)][-1] == ("a", RingPosition.LATER)


def test_looking_changes_nothing():
    def looked_at(of: Ring[Named], look: bool) -> list[str]:
        crowd(of, "abc")
        names = []
        for cost in (4.0, 9.0, 35.0, 1.0, 10.0, 12.0, 7.0, 3.0):
            if look:
                service_order(of, 10)
            names.append(start(of, cost).name)
        return names

    assert looked_at(ring(), look=True) == looked_at(ring(), look=False)


def test_where_there_is_one_member_it_has_its_turn_while_it_has_work():
    member = Named("a")
    sole = SingleClass(10.0, member)
    assert service_order(sole, 5) == []
    sole.add_backlog(0.0, member)
    assert service_order(sole, 5) == [(member, RingPosition.NOW)]
