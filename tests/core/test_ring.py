"""Surplus round robin: who is next, who owes, who is new, and what a pause is worth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.ring import Ring
from services.core.schedulable import RingPosition, Schedulable
from tests.pythoncore import python_core

pytestmark = python_core


class Named(Schedulable):
    def __init__(self, name: str, weight: float = 1.0) -> None:
        super().__init__(weight)
        self.name = name


def ring(quantum: float = 10.0, **limits: float) -> Ring[Named]:
    return Ring(quantum, **limits)


def crowd(of: Ring[Named], names: str, requests: int = 1000, now: float = 0.0) -> list[Named]:
    """Members with much to do, all new."""
    members = [Named(name) for name in names]
    for member in members:
        for _ in range(requests):
            of.add_backlog(now, member)
    return members


def settled(of: Ring[Named], names: str) -> list[Named]:
    """Members with much to do, each past its first turn, so that nobody is new."""
    members = crowd(of, names)
    turns(of, len(names), cost=of.quantum)
    return members


def start(of: Ring[Named], cost: float, now: float = 0.0) -> Named:
    """Whoever is at the front starts a request, and settles it at its estimate."""
    member = of.front()
    assert member is not None
    of.charge(member, cost)
    of.settle(now, member, 0.0, ended=cost)
    of.remove_backlog(now, member)
    return member


def turns(of: Ring[Named], count: int, cost: float = 10.0, now: float = 0.0) -> str:
    return "".join(start(of, cost, now).name for _ in range(count))


def pay(of: Ring[Named], member: Named, cost: float, now: float = 0.0) -> None:
    """The member, which is at the front, starts one request of this cost."""
    assert of.front() is member
    assert start(of, cost, now) is member


def visits(of: Ring[Named]) -> list[Named]:
    """Every member that `front` moves on from here on."""
    seen: list[Named] = []
    wait = of._wait

    def counted(member: Named) -> None:
        seen.append(member)
        wait(member)

    spy = type("Spy", (Ring,), {"__slots__": (), "_wait": staticmethod(counted)})
    of.__class__ = spy
    return seen


def test_equal_members_take_turns():
    of = ring()
    crowd(of, "abc")
    assert turns(of, 9) == "abcabcabc"


def test_a_member_of_twice_the_weight_gets_twice_the_work():
    of = ring()
    heavy, light = Named("h", 2.0), Named("l")
    for member in (heavy, light):
        for _ in range(100):
            of.add_backlog(0.0, member)
    served = turns(of, 90)
    assert abs(served.count("h") - 60) <= 2


def test_a_member_is_served_while_its_deficit_is_positive_and_may_owe_the_rest():
    of = ring(quantum=10)
    crowd(of, "ab")
    assert turns(of, 5, cost=4) == "aaabb"


def test_a_member_in_debt_stays_away_for_as_many_rounds_as_the_debt_takes():
    of = ring(quantum=10)
    a, _ = crowd(of, "ab")
    pay(of, a, 50)  # 10 given, 40 owed: rounds 1 to 4 pay, round 5 is its next
    assert turns(of, 7) == "bbbbbba"


def test_the_counter_jumps_when_all_are_in_debt_instead_of_turning_empty_rounds():
    of = ring(quantum=10)
    a, b = crowd(of, "ab")
    pay(of, a, 1e6)
    pay(of, b, 2e6)
    jumps: list[int] = []
    of.__class__ = type("Spy", (Ring,), {"__slots__": (), "_measure_rounds": lambda _, turned: jumps.append(turned)})
    assert of.front() is a
    assert jumps == [100_000]
    assert of.round == 100_000


@given(rounds=st.lists(st.floats(1, 1e12), min_size=1, max_size=8), quantum=st.floats(1e-3, 1e6))
def test_a_debt_of_any_size_costs_a_bounded_number_of_visits(rounds: list[float], quantum: float):
    of = ring(quantum=quantum)
    members = crowd(of, "abcdefgh"[: len(rounds)], requests=2)
    for member, debt in zip(members, rounds, strict=True):
        pay(of, member, debt * quantum)
    seen = visits(of)
    assert of.front() is not None
    assert len(seen) <= 3 * len(rounds)


def test_the_gap_may_come_close_to_two_quanta_and_no_further():
    of = ring(quantum=10)
    g, f = crowd(of, "gf")
    pay(of, g, 9.99)
    pay(of, g, 101.0)  # with next to nothing left: 100.99 owed, so it is due in round 11
    work = 0.0
    while (member := of.front()) is f:
        cost = 9.9 if of.round == 11 and f.deficit == 10 else 10.0
        pay(of, f, cost)
        work += cost
    assert member is g
    costs = 10.0 + 101.0
    assert 10 + costs < work <= 2 * 10 + costs


def test_a_refund_brings_a_debtor_back_in_the_round_in_which_it_turns_positive():
    of = ring(quantum=10)
    a, _ = crowd(of, "ab")
    a_front = of.front()
    assert a_front is a
    of.charge(a, 1000.0)
    of.remove_backlog(0.0, a)
    assert turns(of, 3) == "bbb"
    of.settle(0.0, a, 995.0, ended=5.0)
    assert turns(of, 4)[0] == "a"


def test_a_refund_is_given_back_whole_so_that_only_what_was_used_counts():
    of = ring(quantum=10)
    a, b = crowd(of, "ab")
    work = {"a": 0.0, "b": 0.0}
    for _ in range(400):
        member = of.front()
        assert member is not None
        estimate, actual = (90.0, 9.0) if member is a else (1.0, 9.0)  # one is flattered ninefold, one the other way
        of.charge(member, estimate)
        of.remove_backlog(0.0, member)
        of.settle(0.0, member, estimate - actual, ended=actual)
        work[member.name] += actual
    assert abs(work["a"] - work["b"]) <= 20 + 18
    assert b.unsettled == pytest.approx(0.0)


def test_a_member_that_comes_is_served_ahead_of_those_that_are_here():
    of = ring()
    settled(of, "abc")
    turns(of, 1)
    new = Named("n")
    for _ in range(9):
        of.add_backlog(0.0, new)
    assert len(of._new) == 1
    assert turns(of, 5) == "nbcna"


def test_a_newcomer_stands_ahead_for_one_quantum_only():
    of = ring(quantum=10)
    crowd(of, "abc")
    turns(of, 3)
    new = Named("n")
    for _ in range(9):
        of.add_backlog(0.0, new)
    assert turns(of, 8, cost=5) == "nnaabbcc"


def test_nobody_is_new_twice_in_a_row_by_coming_back_at_once():
    of = ring(quantum=10)
    crowd(of, "abc")
    turns(of, 3)
    new = Named("n")
    of.add_backlog(0.0, new)
    pay(of, new, 10)
    of.add_backlog(0.0, new)  # in the same round: it has had its quantum
    assert new.position is RingPosition.NEXT
    assert turns(of, 4) == "abcn"


def test_what_is_left_of_a_quantum_may_be_used_in_the_round_that_gave_it():
    of = ring(quantum=10)
    crowd(of, "abc")
    turns(of, 3)
    new = Named("n")
    served = ""
    for _ in range(4):
        of.add_backlog(0.0, new)
        served += turns(of, 1, cost=4)
    assert served == "nnna"  # 4 + 4 + 4 of 10: the third makes it owe


def test_a_member_that_empties_in_time_for_each_visit_gets_one_quantum_a_round_like_everybody():
    of = ring(quantum=10)
    patient = crowd(of, "p")[0]
    sly = Named("s")
    work = {"p": 0.0, "s": 0.0}
    for _ in range(500):
        if not sly.backlog:
            of.add_backlog(0.0, sly)
        work[start(of, 10.0).name] += 10.0
    assert patient.backlog
    assert abs(work["p"] - work["s"]) <= 2 * 10 + 2 * 10


def test_credit_does_not_survive_a_pause():
    of = ring(quantum=10)
    settled(of, "ab")
    saver = Named("s")
    of.add_backlog(0.0, saver)
    pay(of, saver, 1)  # 9 left
    turns(of, 40)  # 20 rounds pass
    for _ in range(99):
        of.add_backlog(0.0, saver)
    assert saver.deficit == 10
    assert turns(of, 4).count("s") == 2  # one new, and one in the next round


def test_debt_survives_a_pause_and_keeps_whoever_owes_from_being_new():
    of = ring(quantum=10)
    settled(of, "ab")
    debtor = Named("d")
    of.add_backlog(0.0, debtor)
    pay(of, debtor, 60)
    assert debtor.position is RingPosition.OUT
    of.add_backlog(0.0, debtor)
    assert len(of._new) == 0
    assert turns(of, 13) == "ab" * 6 + "d"


def test_rounds_pay_a_debt_while_the_debtor_is_away():
    of = ring(quantum=10)
    settled(of, "ab")
    debtor = Named("d")
    of.add_backlog(0.0, debtor)
    pay(of, debtor, 60)
    turns(of, 14)  # seven rounds
    of.add_backlog(0.0, debtor)
    assert turns(of, 1) == "d"


def test_time_pays_half_of_what_is_missing_in_a_half_life_when_nobody_makes_the_rounds_turn():
    of = ring(quantum=10, debt_half_life_s=60)
    debtor = Named("d")
    of.add_backlog(0.0, debtor)
    pay(of, debtor, 100)
    assert of.deficit_at(0.0, debtor) == -90
    assert of.deficit_at(60.0, debtor) == pytest.approx(10 - 50)
    assert of.deficit_at(120.0, debtor) == pytest.approx(10 - 25)
    assert of.deficit_at(6000.0, debtor) == pytest.approx(10)
    assert of.round == 0


def test_a_debtor_that_was_away_long_enough_has_a_whole_quantum_again():
    of = ring(quantum=10, debt_half_life_s=60)
    debtor = Named("d")
    of.add_backlog(0.0, debtor)
    pay(of, debtor, 100)
    of.add_backlog(6000.0, debtor)
    assert debtor.position in (RingPosition.NEW, RingPosition.NOW)
    assert debtor.deficit == pytest.approx(10)


def one_in_flight(of: Ring[Named], charge: float) -> Named:
    """A member that has started its only request, and is out."""
    member = Named("s")
    of.add_backlog(0.0, member)
    assert of.front() is member
    of.charge(member, charge)
    of.remove_backlog(0.0, member)
    return member


def test_the_debt_that_is_kept_is_capped_once_it_is_settled():
    of = ring(quantum=10, debt_quanta=16)
    debtor = one_in_flight(of, 1e6)
    assert of.deficit_at(0.0, debtor) == 10 - 1e6
    of.settle(0.0, debtor, 0.0, ended=1e6)
    assert of.deficit_at(0.0, debtor) == -160


def test_a_late_bill_is_capped_like_any_other_debt():
    of = ring(quantum=10, debt_quanta=16)
    debtor = one_in_flight(of, 1.0)
    of.settle(0.0, debtor, -1e6, ended=1e6 + 1)
    assert of.deficit_at(0.0, debtor) == -160


def test_the_cap_does_not_forgive_what_a_refund_will_give_back():
    of = ring(quantum=10, debt_quanta=16)
    settled(of, "ab")
    sly = one_in_flight(of, 1000.0)
    of.add_backlog(0.0, sly)
    of.settle(0.0, sly, 990.0, ended=10.0)
    assert of.deficit_at(0.0, sly) == 0  # it has used its quantum of this round, all of it


def test_time_does_not_forgive_what_a_refund_will_give_back():
    of = ring(quantum=10, debt_half_life_s=60)
    sly = one_in_flight(of, 1000.0)
    of.settle(600.0, sly, 900.0, ended=100.0)  # ten half-lives, but nothing of it was settled until now
    assert of.deficit_at(600.0, sly) == pytest.approx(10 - 100)


def test_a_change_of_weight_holds_from_here_on_and_not_for_rounds_that_are_past():
    of = ring(quantum=10)
    a, b = crowd(of, "ab")
    pay(of, a, 1000)
    turns(of, 50)
    assert b.backlog
    before = of.deficit_at(0.0, a)
    of.reweigh(a, 100.0)
    assert of.deficit_at(0.0, a) == pytest.approx(before)
    assert "a" in turns(of, 3)


def test_a_lower_weight_makes_a_debtor_wait_longer():
    of = ring(quantum=10)
    a, _ = crowd(of, "ab")
    pay(of, a, 100)
    turns(of, 5)
    of.reweigh(a, 0.1)
    assert "a" not in turns(of, 40)


def test_a_change_of_weight_while_away_does_not_multiply_what_was_given():
    of = ring(quantum=10)
    settled(of, "ab")
    away = Named("w")
    of.add_backlog(0.0, away)
    pay(of, away, 100.0)
    turns(of, 8)
    before = of.deficit_at(0.0, away)
    of.reweigh(away, 50.0)
    assert of.deficit_at(0.0, away) == pytest.approx(before)


def test_a_change_of_quantum_holds_from_here_on_and_not_for_rounds_that_are_past():
    of = ring(quantum=10)
    a, _ = crowd(of, "ab")
    pay(of, a, 1000)
    turns(of, 50)
    before = of.deficit_at(0.0, a)
    of.quantum = 40
    assert of.deficit_at(0.0, a) == before


def test_putting_aside_and_back_changes_nothing_when_nobody_starts():
    of = ring(quantum=10)
    members = crowd(of, "abc")
    pay(of, members[0], 1000)
    turns(of, 10)
    of.front()
    before = (of.round, of.given, [of.deficit_at(0.0, member) for member in members], of.round_work)
    while member := of.front():
        of.skip(member)
    of.unskip(started=False)
    assert (of.round, of.given, [of.deficit_at(0.0, member) for member in members], of.round_work) == before
    assert turns(of, 6) in ("bcbcbc", "cbcbcb")


def test_a_glance_at_a_full_house_does_not_pay_a_debt():
    of = ring(quantum=10)
    a, _ = crowd(of, "ab")
    pay(of, a, 1000)
    for _ in range(200):
        while member := of.front():
            of.skip(member)
        of.unskip(started=False)
    assert turns(of, 90) == "b" * 90


def test_whoever_was_passed_over_is_at_the_front_again_with_nothing_lost():
    of = ring(quantum=10)
    a, b = crowd(of, "ab")[:2]
    passed = of.front()
    assert passed is a
    of.skip(a)
    other = of.front()
    assert other is b
    of.charge(b, 500.0)
    of.remove_backlog(0.0, b)
    of.unskip(started=True)
    assert a.deficit == 10
    assert turns(of, 3) == "aaa"


def test_a_member_without_work_is_not_in_the_ring():
    of = ring()
    members = crowd(of, "abcd", requests=2)
    pay(of, members[0], 500)
    for member in members:
        while member.backlog:
            of.remove_backlog(0.0, member)
    assert of.front() is None
    assert all(member.position is RingPosition.OUT for member in members)
    assert not of._new
    assert not of._now
    assert not of._next


def test_the_heap_of_debtors_does_not_grow_with_the_refunds():
    of = ring(quantum=10)
    a, b = crowd(of, "ab", requests=5000)
    for _ in range(4000):
        member = of.front()
        assert member is not None
        of.charge(member, 1e6)
        of.remove_backlog(0.0, member)
        of.settle(0.0, member, 1e6 - 3.0, ended=3.0)
    assert a.backlog
    assert b.backlog
    assert len(of._later) <= 2 * 64 + 4


def test_the_heap_of_debtors_does_not_grow_with_those_who_leave():
    of = ring(quantum=10)
    settled(of, "a")
    for _ in range(900):
        debtor = Named("d")
        of.add_backlog(0.0, debtor)
        of.add_backlog(0.0, debtor)
        pay(of, debtor, 1e9)
        of.front()
        of.remove_backlog(0.0, debtor)
    assert len(of._later) <= 2 * 64 + 4


@given(asked=st.lists(st.tuples(st.integers(0, 4), st.floats(0.1, 40.0)), max_size=200))
def test_nobody_starves_whatever_the_others_do(asked: list[tuple[int, float]]):
    of = ring(quantum=10)
    patient = crowd(of, "p")[0]
    others = [Named(name) for name in "abcde"]
    meanwhile = 0.0
    for at, cost in asked:
        if not others[at].backlog:
            of.add_backlog(0.0, others[at])
        if start(of, cost) is patient:
            meanwhile = 0.0
        else:
            meanwhile += cost
        assert meanwhile <= len(others) * (2 * 10 + 40 + 40)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_a_weight_must_be_above_zero_and_finite(weight: float):
    with pytest.raises(ValueError, match="weight"):
        Schedulable(weight)


@pytest.mark.parametrize("quantum", [0.0, -1.0, math.nan, math.inf])
def test_a_quantum_must_be_above_zero_and_finite(quantum: float):
    with pytest.raises(ValueError, match="quantum"):
        Ring(quantum)


def test_a_ring_tells_who_stands_where():
    of = ring()
    crowd(of, "abc")
    start(of, 10.0)
    start(of, 99.0)
    of.front()
    assert repr(of) == "<Ring round 0, quantum 10: 1 new, 0 now, 1 next, 1 later>"
