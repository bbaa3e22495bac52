"""Whom a router asks, for how much, and when it gives back."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.core.leases.borrower import SENT_QUANTA, SMALL_POOL, Asks, Borrower
from services.core.leases.messages import Grant
from services.core.leases.times import ASKS_PER_TTL, LINGER_S, MAX_TTL_S, MIN_TTL_S, WANT_EVERY_S, ttl_s
from tests.core.leases.rig import want


def before(workers: int) -> Borrower:
    borrower = Borrower("a", 1, Random(1).random, lambda: 10.0)
    for n in range(workers):
        borrower.join(0.0, f"w{n}", 4)
    return borrower


def lend(borrower: Borrower, worker: str, now: float, may: int, *, recall: bool = False) -> None:
    holding = borrower.holdings[worker]
    sent = holding.ask(now, (), quantum=1.0, ttl_s=MIN_TTL_S)
    borrower.receive(now, worker, Grant((1, int(1e6 * now) + 1), sent.stamp, may, MIN_TTL_S, 4, recall))


def wanted(asks: Asks) -> list[int]:
    return [sum(each.requests for each in ask.wants) for _, ask in asks]


def test_all_workers_of_a_small_pool_are_asked_for_all_of_it_when_work_begins_to_wait() -> None:
    borrower = before(3)
    asks = borrower.settle(0.0, (want(5),))
    assert [worker for worker, _ in asks] == ["w0", "w1", "w2"]
    assert wanted(asks) == [5, 5, 5]
    assert borrower.settle(0.0, (want(6),)) == []


def test_a_pool_is_small_up_to_eight_workers() -> None:
    assert len(before(8).settle(0.0, (want(1),))) == 8
    assert len(before(9).settle(0.0, (want(1),))) == 2


def test_when_work_begins_to_wait_again_it_asks_at_once() -> None:
    borrower = before(1)
    for _ in range(2):
        assert wanted(borrower.settle(0.0, (want(1),))) == [1]
        assert borrower.settle(0.0, ()) == []


def test_it_asks_again_when_light_work_comes_back() -> None:
    borrower = before(1)
    borrower.settle(0.0, (want(5, light=2),))
    assert borrower.settle(0.0, (want(5, light=1),)) == []
    assert len(borrower.settle(0.0, (want(5, light=2),))) == 1


def test_it_asks_again_when_more_of_what_waits_is_light() -> None:
    borrower = before(2)
    borrower.settle(0.0, (want(5, light=1),))
    assert borrower.settle(0.0, (want(5, light=1),)) == []
    assert len(borrower.settle(0.0, (want(6, light=2),))) == 2


def test_it_asks_again_when_its_level_is_far_above_what_the_workers_of_a_small_pool_know() -> None:
    for workers, again in ((SMALL_POOL, SMALL_POOL), (SMALL_POOL + 1, 0)):
        borrower = before(workers)
        borrower.settle(0.0, (want(64, level=100.0),))
        assert borrower.settle(0.0, (want(64, level=100.0 + SENT_QUANTA * 10.0),)) == []
        assert len(borrower.settle(0.0, (want(64, level=101.0 + SENT_QUANTA * 10.0),))) == again
        assert borrower.settle(0.0, (want(64, level=90.0),)) == [], "one that is behind is told in time"


def test_a_few_workers_of_a_large_pool_are_asked_for_a_part_each() -> None:
    borrower = before(50)
    asks = borrower.settle(0.0, (want(20, light=3),))
    assert len({worker for worker, _ in asks}) == len(asks) == SMALL_POOL
    assert wanted(asks) == [3] * SMALL_POOL
    assert [ask.wants[0].light for _, ask in asks] == [1] * SMALL_POOL
    assert len(before(50).settle(0.0, (want(1),))) == 2


def test_wants_are_repeated_while_work_waits() -> None:
    borrower = before(1)
    borrower.settle(0.0, (want(1),))
    assert borrower.refresh(0.5 * WANT_EVERY_S, (want(1),)) == []
    assert wanted(borrower.refresh(1.1 * WANT_EVERY_S, (want(1),))) == [1]


def test_wants_are_repeated_five_times_a_second() -> None:
    borrower = before(1)
    borrower.settle(0.0, (want(1),))
    assert borrower.refresh(0.19, (want(1),)) == []
    assert wanted(borrower.refresh(0.2, (want(1),))) == [1]


def test_a_lease_ends_for_the_sums_when_it_ends_at_its_worker() -> None:
    borrower = before(1)
    lend(borrower, "w0", 0.0, 1)
    assert borrower.may(0.0) == 1
    at = borrower.holdings["w0"].lapses_at
    assert (borrower.may(at), list(borrower.free(at))) == (0, [])


def test_a_worker_where_requests_run_on_after_the_lease_is_asked_still() -> None:
    borrower = before(1)
    lend(borrower, "w0", 0.0, 1)
    borrower.start(0.0, "w0")
    late = 2 * MIN_TTL_S
    assert borrower.may(late) == 0
    assert [worker for worker, _ in borrower.refresh(late, ())] == ["w0"]


def test_leases_are_prolonged_in_time_for_two_lost_asks() -> None:
    borrower = before(2)
    lend(borrower, "w0", 0.0, 1)
    borrower.start(0.0, "w0")
    assert borrower.refresh(0.2, ()) == []
    asks = borrower.refresh(MIN_TTL_S / ASKS_PER_TTL, ())
    assert [(worker, ask.keep) for worker, ask in asks] == [("w0", None)]


def test_an_idle_slot_that_somebody_waits_for_goes_back_at_once() -> None:
    borrower = before(1)
    lend(borrower, "w0", 0.0, 2, recall=True)
    assert [ask.keep for _, ask in borrower.settle(0.0, ())] == [0]
    assert borrower.may(0.0) == 0


def test_an_idle_slot_that_somebody_waits_for_goes_back_though_a_retry_waits_here_that_may_not_use_it() -> None:
    borrower = before(2)
    lend(borrower, "w0", 0.0, 2, recall=True)
    lend(borrower, "w1", 0.0, 1)
    asks = borrower.settle(0.0, (want(1, light=1),))
    assert [(worker, ask.keep) for worker, ask in asks] == [("w0", 0), ("w0", 0), ("w1", None)], "said until confirmed"
    assert wanted(asks) == [0, 1, 1]
    assert (list(borrower.free(0.0)), borrower.may(0.0)) == (["w1"], 1)
    assert borrower.settle(0.0, (want(1, light=1),)) == []


def test_an_idle_slot_that_nobody_waits_for_goes_back_after_a_while() -> None:
    borrower, now = before(1), 0.0
    lend(borrower, "w0", now, 2)
    while now < LINGER_S - 0.1:
        assert borrower.settle(now, ()) == []
        assert [ask.keep for _, ask in borrower.refresh(now, ())] in ([], [None])
        holding = borrower.holdings["w0"]
        now += 0.1
        holding.lapses_at = now + 1.0
    assert [ask.keep for _, ask in borrower.refresh(LINGER_S + 0.01, ())] == [0]


def test_a_slot_that_is_lent_anew_after_a_lease_has_ended_does_not_go_back_as_if_it_had_been_idle_meanwhile() -> None:
    borrower, later = before(1), 10.0
    lend(borrower, "w0", 0.0, 1)
    lend(borrower, "w0", later, 1)
    every_s = MIN_TTL_S / ASKS_PER_TTL
    assert [ask.keep for _, ask in borrower.refresh(later + every_s, ())] == [None], "prolonged"
    assert borrower.may(later + every_s) == 1


def test_an_end_without_a_grant_is_said_at_once() -> None:
    borrower = before(1)
    lend(borrower, "w0", 0.0, 1)
    borrower.start(0.0, "w0")
    assert [(worker, ask.keep) for worker, ask in borrower.end(0.0, "w0", None)] == [("w0", 0)]


def test_an_end_without_a_grant_says_what_waits_and_of_a_large_pool_one_of_each_class() -> None:
    for workers, requests, light in ((2, 5, 3), (50, 1, 1)):
        borrower = before(workers)
        lend(borrower, "w0", 0.0, 1)
        borrower.start(0.0, "w0")
        ((_, ask),) = borrower.end(0.0, "w0", None, wants=(want(5, light=3),))
        assert [(each.requests, each.light) for each in ask.wants] == [(requests, light)]


def test_a_router_that_is_ahead_gives_back_one_idle_slot_and_none_that_it_uses() -> None:
    for may, kept in ((1, []), (2, [1])):  # of two requests one ends
        borrower = before(50)
        lend(borrower, "w0", 0.0, 2)
        borrower.start(0.0, "w0")
        borrower.start(0.0, "w0")
        sent = borrower.holdings["w0"].ask(0.0, (), quantum=1.0, ttl_s=MIN_TTL_S)
        grant = Grant((1, 10), sent.stamp, may, MIN_TTL_S, 4, True)
        assert [ask.keep for _, ask in borrower.end(0.0, "w0", grant, is_ahead=True)] == kept


def test_a_router_that_is_ahead_gives_its_slot_back_in_a_large_pool_only() -> None:
    for workers, asks in ((2, 0), (50, 1)):
        borrower = before(workers)
        lend(borrower, "w0", 0.0, 1)
        borrower.start(0.0, "w0")
        holding = borrower.holdings["w0"]
        sent = holding.ask(0.0, (), quantum=1.0, ttl_s=MIN_TTL_S)
        grant = Grant((1, 10), sent.stamp, 1, MIN_TTL_S, 4, True)
        assert len(borrower.end(0.0, "w0", grant, is_ahead=True)) == asks


def test_a_worker_that_left_has_no_slot() -> None:
    borrower = before(2)
    lend(borrower, "w0", 0.0, 1)
    lend(borrower, "w1", 0.0, 1)
    borrower.disconnect(0.0, "w0")
    assert list(borrower.free(0.0)) == ["w1"]
    assert (borrower.uses, borrower.pool_slots) == (0, 8)


def test_leases_last_longer_where_many_workers_are_held() -> None:
    assert (ttl_s(0), ttl_s(125), ttl_s(250), ttl_s(10_000)) == (MIN_TTL_S, MIN_TTL_S, 1.5, MAX_TTL_S)


def test_a_worker_that_cannot_be_used_is_not_asked_and_its_slots_go_back() -> None:
    borrower = before(2)
    lend(borrower, "w0", 0.0, 2)
    borrower.use(0.0, "w0", usable=False)
    assert list(borrower.free(0.0)) == []
    assert borrower.pool_slots == 4
    assert [worker for worker, _ in borrower.settle(0.0, (want(1),))] == ["w1"]
    back = [(worker, ask.keep, ask.wants) for worker, ask in borrower.refresh(0.0, (want(1),))]
    assert back == [("w0", 0, ())]
    borrower.use(0.0, "w0", usable=True)
    assert borrower.pool_slots == 8


def test_a_worker_that_left_counts_for_nothing() -> None:
    borrower = before(9)
    lend(borrower, "w3", 0.0, 2)
    borrower.start(0.0, "w3")
    borrower.leave(0.0, "w3")
    assert (borrower.may(0.0), borrower.uses, borrower.pool_slots) == (0, 0, 32)
    assert "w3" not in {worker for worker, _ in borrower.settle(0.0, (want(8),))}


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("lsedgubpn"), st.integers(0, 4)), max_size=60))
def test_its_sums_are_those_of_its_holdings_whatever_happens(events: list[tuple[int, str, int]]) -> None:
    borrower, now = before(4), 0.0
    for place, event, number in events:
        worker = f"w{place}"
        holding = borrower.holdings[worker]
        if event == "l":
            lend(borrower, worker, now, number)
        elif event == "s" and holding.free(now):
            borrower.start(now, worker)
        elif event == "e" and holding.uses:
            borrower.end(now, worker, None)
        elif event == "d":
            borrower.disconnect(now, worker)
        elif event == "g":
            borrower.settle(now, ())
        elif event in "ub":
            borrower.use(now, worker, usable=event == "u", slots=number)
        elif event == "p":
            now += 0.3
        elif event == "n":
            borrower.refresh(now, (want(number),) if number else ())
        holdings = borrower.holdings
        assert borrower.may(now) == sum(each.may(now) for each in holdings.values())
        assert borrower.uses == sum(each.uses for each in holdings.values())
        assert borrower.pool_slots == sum(each.slots for each in holdings.values() if each.usable)
        assert set(borrower.free(now)) == {name for name, each in holdings.items() if each.free(now)}
