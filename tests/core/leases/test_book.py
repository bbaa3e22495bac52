"""A worker's book: what it lends, to whom, what it takes back, and what it does not believe."""

from __future__ import annotations

from math import inf

import pytest

from services.core.leases.book import MAX_ROUTERS, LeaseBook
from services.core.leases.times import DRIFT, MIN_TTL_S, WANT_TTL_S
from tests.core.leases.rig import Worker, ask, want


def test_a_free_slot_is_lent_to_a_router_that_asks_and_the_answer_says_so() -> None:
    worker = Worker(4)
    assert worker.asks(0.0, "a", want(1)) == ["a"]
    assert worker.may("a") == 1
    assert worker.book.free == 3


def test_a_router_is_lent_half_of_the_slots_until_it_uses_them() -> None:
    worker = Worker(4)
    worker.asks(0.0, "a", want(9))
    assert worker.may("a") == 2
    worker.uses(0.0, "a", 2, want(9))
    assert worker.may("a") == 4


def test_the_end_of_a_request_leaves_its_slot_where_it_is_while_nobody_else_waits() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a")
    assert worker.ends(0.0, "a") == ["a"]
    assert worker.may("a") == 1


def test_the_end_of_a_request_gives_its_slot_to_the_router_that_is_behind() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a", 1, want(3, level=50.0))
    worker.asks(0.0, "b", want(1, level=10.0))
    assert worker.may("b") == 0
    assert worker.ends(0.0, "a") == ["a", "b"]
    assert (worker.may("a"), worker.may("b")) == (0, 1)


def test_a_router_that_is_behind_keeps_its_slot_for_as_many_requests_as_it_wanted() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a", 1, want(1, level=10.0))
    worker.asks(0.0, "b", want(1, level=50.0))
    worker.ends(0.0, "a")
    assert (worker.may("a"), worker.may("b"), worker.book.moves) == (1, 0, 1)
    assert worker.book.start(0.0, "a", 1) is not None
    worker.ends(0.0, "a")
    assert (worker.may("a"), worker.may("b")) == (0, 1)


def test_a_router_of_several_classes_is_compared_in_the_one_whose_turn_is_next() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a", 1, want(1, name="gold", turn=5.0), want(1, name="tin", turn=1.0, level=90.0))
    worker.asks(0.0, "b", want(1, name="tin", turn=1.0, level=50.0))
    worker.ends(0.0, "a")
    assert (worker.may("a"), worker.may("b")) == (0, 1)


def test_of_what_it_wanted_a_router_counts_the_light_requests_first() -> None:
    worker = Worker(4)
    worker.asks(0.0, "a", want(9, light=1, level=50.0))
    for _ in range(4):
        assert worker.book.start(0.0, "a", 1) is not None
    worker.asks(0.0, "b", want(1))
    worker.ends(0.0, "a")
    assert (worker.may("a"), worker.may("b")) == (3, 1), "its light request has had its slot"


def test_the_end_of_a_long_request_of_a_router_that_wanted_nothing_more_gives_its_slot_away() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a")
    later = 1.2 * WANT_TTL_S
    worker.asks(later, "b", want(1))
    worker.ends(later, "a")
    assert worker.may("b") == 1


def test_a_grant_says_the_lowest_level_of_the_others_that_wait() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a")
    for router, level in (("b", 30.0), ("c", 20.0), ("d", 40.0)):
        worker.asks(0.0, router, want(1, level=level))
    worker.asks(0.0, "a")
    assert worker.last["a"].lowest == (("default", 20.0),)


def test_a_router_starts_no_more_than_it_was_lent() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(2))
    worker.uses(0.0, "a")
    assert worker.book.start(0.0, "a", 1) is None


def test_a_router_with_nothing_more_to_start_gives_its_slot_away_at_the_end() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a")
    worker.asks(0.0, "b", want(1, level=1e9))
    worker.ends(0.0, "a")
    assert (worker.may("a"), worker.may("b")) == (0, 1)


def test_an_idle_slot_is_recalled_for_a_router_that_waits_and_lent_when_it_comes_back() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    assert worker.asks(0.0, "b", want(1)) == ["b", "a"]
    assert worker.last["a"].recall
    worker.asks(0.0, "a", keep=0)
    assert (worker.may("a"), worker.may("b")) == (0, 1)


def test_idle_slots_are_recalled_once_and_not_of_a_router_that_wants_more() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(3))
    worker.asks(0.0, "b", want(1))
    assert worker.asks(0.0, "c", want(1)) == ["c", "b"]
    assert worker.asks(0.0, "c", want(1)) == ["c"]
    worker.asks(0.0, "b")
    assert worker.asks(0.0, "c", want(1)) == ["c"], "it was said in the answer to its ask"


def test_a_want_counts_for_half_a_second() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a")
    worker.asks(0.0, "b", want(1))
    worker.ends(0.5, "a")
    assert worker.may("b") == 1


def test_a_want_that_is_not_repeated_is_forgotten() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a", 1, want(1))
    worker.asks(0.1, "b", want(1))
    later = 0.1 + 1.01 * WANT_TTL_S
    worker.asks(later, "a")
    assert worker.ends(later, "a") == ["a"]
    assert worker.may("b") == 0


def test_a_lease_ends_by_itself_and_what_runs_stays_counted() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(2))
    worker.uses(0.0, "a")
    over = MIN_TTL_S * (1 + 2 * DRIFT)
    worker.book.lapse(over)
    assert (worker.book.may("a"), worker.book.promised, worker.book.running) == (0, 1, 1)
    worker.asks(over, "b", want(2))
    assert (worker.may("b"), worker.book.free) == (1, 0)
    worker.ends(over, "a")
    assert (worker.book.running, worker.book.free) == (0, 1)
    worker.uses(over, "b", 1, want(1))
    assert worker.may("b") == 2


def test_a_stream_that_ends_frees_the_slots_at_once() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.asks(0.0, "b", want(1))
    worker.took(worker.book.disconnect(0.0, "a", 1))
    assert worker.may("b") == 1
    assert worker.book.disconnect(0.0, "a", 7) == {}


def test_an_ask_that_arrives_after_the_end_of_its_stream_lends_nothing() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    late = ask("a", want(1))
    worker.book.disconnect(0.0, "a", 1)
    assert worker.book.receive(0.0, late)["a"].may == 0
    assert worker.book.promised == 0
    worker.asks(0.0, "a", want(1), epoch=2)
    assert worker.may("a") == 1


def test_an_ask_that_arrives_after_its_lease_and_its_stream_lends_nothing() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.book.lapse(9.0)
    worker.book.disconnect(9.0, "a", 1)
    assert worker.book.receive(9.0, ask("a", want(1)))["a"].may == 0


def test_of_two_ends_of_streams_the_later_epoch_counts() -> None:
    worker = Worker(1)
    for epoch in (5, 3):
        worker.book.disconnect(0.0, "a", epoch)
    worker.asks(0.0, "a", want(1), epoch=5)
    assert worker.may("a") == 0
    worker.asks(0.0, "a", want(1), epoch=6)
    assert worker.may("a") == 1


def test_an_ask_for_a_shorter_lease_does_not_shorten_it() -> None:
    worker = Worker(1)
    worker.took(worker.book.receive(0.0, ask("a", want(1))._replace(ttl_s=3.0)))
    at = worker.book.wakes_at()
    assert at == pytest.approx(3.0 * (1 + DRIFT))
    worker.asks(0.1, "a")
    assert worker.book.wakes_at() == at


def test_ends_of_streams_are_remembered_for_as_many_routers_as_there_can_be() -> None:
    worker = Worker(1)
    for n in range(MAX_ROUTERS + 5):
        worker.book.disconnect(0.0, f"r{n}", 1)
    assert len(worker.book._ended) == MAX_ROUTERS


def test_a_request_beyond_its_lease_starts_only_in_a_slot_that_nobody_was_promised() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(1))
    assert worker.book.start(0.0, "b", 1) is not None
    assert worker.book.start(0.0, "b", 1) is None
    assert worker.book.start(0.0, "a", 1) is not None


def test_a_process_of_the_same_name_replaces_the_older_one() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(2), epoch=5)
    worker.book.start(0.0, "a", 5)
    worker.asks(0.0, "a", want(2), epoch=6)
    assert worker.book.promised == 2
    older = worker.book.receive(0.0, ask("a", want(1), epoch=5))
    assert older["a"].may == 0
    assert worker.book.start(0.0, "a", 5) is None
    worker.book.end(0.0, "a", 5)
    assert worker.book.running == 0


def test_an_ask_that_comes_twice_or_late_changes_nothing() -> None:
    book = LeaseBook(1, 4)
    early, late = ask("a", want(1)), ask("a", want(1))
    granted = book.receive(0.0, late)["a"]
    assert book.receive(0.0, late)["a"] == granted
    assert book.receive(0.0, early)["a"] == granted
    assert book.promised == 1


def test_what_a_router_gives_back_counts_at_once() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(2))
    worker.uses(0.0, "a", 1, want(1))
    worker.asks(0.0, "a", keep=1)
    assert (worker.may("a"), worker.book.free) == (1, 1)
    worker.asks(0.0, "a", keep=-5)
    assert worker.book.promised == 1


def test_a_worker_that_shrinks_takes_nothing_back_but_at_the_ends_of_requests() -> None:
    worker = Worker(3)
    worker.asks(0.0, "a", want(9))
    worker.uses(0.0, "a", 3, want(9))
    worker.took(worker.book.resize(0.0, 1))
    assert (worker.book.free, worker.may("a")) == (-2, 3)
    worker.ends(0.0, "a", 2)
    assert worker.may("a") == 1
    worker.ends(0.0, "a")
    assert worker.may("a") == 1


def test_a_worker_that_drains_recalls_what_is_idle() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(1))
    assert worker.took(worker.book.resize(0.0, 0)) == ["a"]
    assert worker.last["a"].recall
    assert worker.last["a"].slots == 0


def test_a_router_that_receives_no_grant_loses_its_lease_although_it_asks() -> None:
    worker, now = Worker(1), 0.0
    worker.took(worker.book.receive(now, ask("a", want(1))))
    while worker.book.may("a"):
        now += 0.1
        assert now < 3 * MIN_TTL_S, "the lease of a deaf router ends"
        worker.book.receive(now, ask("a", want(1)))
    for _ in range(5):
        now += 0.1
        answer = worker.book.receive(now, ask("a", want(1)))
        assert worker.book.may("a") == 0, "it is lent nothing before it acknowledges"
    worker.took(worker.book.receive(now, ask("a", want(1), ack=answer["a"])))
    assert worker.may("a") == 1


def deaf(slots: int = 1) -> tuple[Worker, float]:
    """A worker whose router a has lost its lease although it asked, and when."""
    worker, now = Worker(slots), 0.0
    worker.took(worker.book.receive(now, ask("a", want(1))))
    while worker.book.may("a"):
        now += 0.1
        worker.took(worker.book.receive(now, ask("a")))
    return worker, now


def test_a_router_that_acknowledges_what_came_before_its_lease_ended_is_lent_nothing() -> None:
    worker, now = Worker(1), 0.0
    before = worker.book.receive(now, ask("a", want(1)))["a"]
    while worker.book.has_leases:
        last, now = before, now + 0.1
        worker.book.lapse(now)
        if worker.book.has_leases:
            before = worker.book.receive(now, ask("a"))["a"]
    answer = worker.book.receive(now, ask("a", want(1), ack=last))
    assert answer["a"].may == 0
    assert worker.book.receive(now, ask("a", want(1), ack=answer["a"]))["a"].may == 1


def test_a_process_that_follows_one_that_received_nothing_is_lent_slots_at_once() -> None:
    worker, now = deaf()
    assert worker.book.receive(now, ask("a", want(1)))["a"].may == 0
    assert worker.book.receive(now, ask("a", want(1), epoch=2))["a"].may == 1


def test_a_router_that_was_silent_is_lent_slots_when_it_asks_again() -> None:
    worker = Worker(1)
    worker.book.receive(0.0, ask("a", want(1)))
    worker.book.lapse(9.0)
    assert worker.book.receive(9.0, ask("a", want(1)))["a"].may == 1


def test_a_router_that_acknowledges_nothing_is_lent_no_more_while_its_lease_lasts() -> None:
    worker = Worker(4)
    for now, wants in ((0.0, (want(1),)), (0.7, ()), (1.0, (want(1),))):
        worker.took(worker.book.receive(now, ask("a", *wants)))
        assert worker.may("a") == 1, now


def test_a_router_that_acknowledges_one_grant_late_keeps_its_lease() -> None:
    worker, now = Worker(1), 0.0
    acks = [worker.book.receive(now, ask("a", want(1)))["a"]]
    acks.append(worker.book.receive(now, ask("a"))["a"])
    while now < 4 * MIN_TTL_S:
        now += 0.2
        acks.append(worker.book.receive(now, ask("a", ack=acks[-2]))["a"])
        assert acks[-1].may == 1, now


def test_one_router_too_many_is_lent_nothing() -> None:
    book = LeaseBook(1, 1000)
    for n in range(MAX_ROUTERS):
        assert book.receive(0.0, ask(f"r{n}", want(1)))[f"r{n}"].may == 1
    assert book.receive(0.0, ask("one more", want(1)))["one more"].may == 0


def test_look_ahead_is_lent_beyond_the_slots() -> None:
    worker = Worker(1, look_ahead=1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a", 1, want(1))
    assert worker.may("a") == 2


def test_a_book_wakes_when_the_next_lease_ends_and_lends_its_slots() -> None:
    worker = Worker(1)
    assert worker.book.wakes_at() == inf
    worker.asks(0.0, "a", want(1))
    worker.asks(0.6, "b", want(1))
    at = worker.book.wakes_at()
    assert at == pytest.approx(MIN_TTL_S * (1 + DRIFT))
    assert worker.took(worker.book.expire(at + 1e-6)) == ["b"]
    assert worker.may("b") == 1


def test_negative_slots_are_an_error() -> None:
    with pytest.raises(ValueError, match="slots must be at least 0, got -1"):
        LeaseBook(1, -1)


def test_requests_without_an_ask_are_only_counted_while_no_router_has_a_lease() -> None:
    book = LeaseBook(1, 2)
    assert [book.start_without_lease(0.0) for _ in range(5)] == [{}] * 5
    assert (book.running, book.promised, book.free, book.has_leases) == (5, 5, -3, False)
    assert [book.end_without_lease(0.0) for _ in range(5)] == [{}] * 5
    assert (book.running, book.free) == (0, 2)


def test_while_a_router_has_a_lease_a_request_without_an_ask_gets_only_a_slot_that_nobody_was_promised() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(1))
    assert worker.book.has_leases
    assert worker.book.start_without_lease(0.0) is not None
    assert worker.book.start_without_lease(0.0) is None
    worker.uses(0.0, "a")
    assert (worker.book.running, worker.book.free) == (2, 0)


def test_requests_without_an_ask_that_are_more_than_the_slots_keep_a_router_waiting_until_they_have_ended() -> None:
    worker = Worker(2)
    for _ in range(3):
        worker.book.start_without_lease(0.0)
    worker.asks(0.0, "a", want(1))
    assert (worker.may("a"), worker.last["a"].recall) == (0, True)
    assert worker.book.start_without_lease(0.0) is None
    assert worker.took(worker.book.end_without_lease(0.0)) == []
    assert worker.took(worker.book.end_without_lease(0.0)) == ["a"]
    assert (worker.may("a"), worker.book.free) == (1, 0)


def test_a_request_without_an_ask_that_takes_the_last_slot_recalls_what_is_idle() -> None:
    worker = Worker(2)
    worker.asks(0.0, "a", want(1))
    worker.book.start_without_lease(0.0)
    assert worker.asks(0.0, "b", want(1)) == ["b", "a"]
    assert worker.last["a"].recall


def test_a_lease_that_has_ended_leaves_requests_without_an_ask_alone_again() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    assert worker.book.start_without_lease(0.0) is None
    over = MIN_TTL_S * (1 + 2 * DRIFT)
    assert worker.book.start_without_lease(over) == {}
    assert worker.book.start_without_lease(over) == {}


def test_what_is_lent_anew_is_counted_and_what_a_router_keeps_is_not() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.uses(0.0, "a", 1, want(2))
    worker.ends(0.0, "a")
    assert worker.book.moves == 1
    worker.asks(0.0, "b", want(1))
    worker.uses(0.0, "a")
    worker.ends(0.0, "a")
    assert (worker.may("b"), worker.book.moves) == (1, 2)


def test_routers_that_heard_nothing_are_forgotten_beyond_the_number_of_leases() -> None:
    book, now = LeaseBook(1, 1), 0.0
    for n in range(MAX_ROUTERS + 8):
        for _ in range(12):  # it asks, and acknowledges no grant, until its lease has ended
            book.receive(now, ask(f"r{n}", want(1)))
            now += 0.1
    assert len(book._deaf) == MAX_ROUTERS
