"""What a router may use: by its own clock from the sending of its ask, in whatever order grants come."""

from __future__ import annotations

from math import inf

from services.core.leases.holding import MAX_ASKS, Holding
from services.core.leases.messages import Ask, Grant
from services.core.leases.times import DRIFT, MIN_TTL_S


def asked(holding: Holding, now: float, **of: object) -> Ask:
    keep = of.get("keep")
    assert keep is None or isinstance(keep, int)
    return holding.ask(now, (), quantum=10.0, ttl_s=MIN_TTL_S, keep=keep, alone=bool(of.get("alone", True)))


def granted(n: int, echo: Ask, may: int, *, recall: bool = False) -> Grant:
    return Grant((1, n), echo.stamp, may, MIN_TTL_S, 8, recall)


def held(may: int, now: float = 0.0) -> Holding:
    holding = Holding("a", 1)
    assert holding.receive(now, granted(1, asked(holding, now), may))
    return holding


def test_a_lease_lives_from_the_sending_of_its_ask_and_not_from_the_grant() -> None:
    holding = Holding("a", 1)
    sent = asked(holding, 10.0)
    holding.receive(10.5, granted(1, sent, 2))
    assert holding.may(10.0 + MIN_TTL_S * (1 - 2 * DRIFT)) == 2
    assert holding.may(10.0 + MIN_TTL_S) == 0
    assert holding.free(10.0 + MIN_TTL_S) == 0


def test_a_lease_has_ended_at_its_end_and_not_after_it() -> None:
    holding = held(2)
    assert holding.lapses_at == MIN_TTL_S * (1 - DRIFT)
    assert holding.may(holding.lapses_at) == 0


def test_a_later_grant_that_echoes_an_earlier_ask_does_not_shorten_the_lease() -> None:
    holding = Holding("a", 1)
    early, late = asked(holding, 0.0), asked(holding, 0.5)
    holding.receive(0.5, granted(1, late, 1))
    ends_at = holding.lapses_at
    holding.receive(0.5, granted(2, early, 2))
    assert (holding.lapses_at, holding.may(0.5)) == (ends_at, 2)


def test_a_grant_that_is_older_than_the_last_one_changes_nothing() -> None:
    holding = Holding("a", 1)
    sent = asked(holding, 0.0)
    assert holding.receive(0.0, granted(2, sent, 1))
    assert not holding.receive(0.0, granted(1, sent, 5))
    assert not holding.receive(0.0, granted(2, sent, 5))
    assert holding.may(0.0) == 1


def test_a_grant_of_a_worker_that_has_restarted_counts() -> None:
    holding = held(3)
    assert holding.receive(0.0, Grant((9, 1), asked(holding, 0.0).stamp, 1, MIN_TTL_S, 8))
    assert holding.may(0.0) == 1


def test_what_was_given_back_does_not_come_back_with_a_grant_that_was_under_way() -> None:
    holding = held(3)
    before = asked(holding, 0.0)
    giving = asked(holding, 0.0, keep=1)
    assert (giving.keep, holding.may(0.0)) == (1, 1)
    holding.receive(0.0, granted(2, before, 4))
    assert holding.may(0.0) == 1
    holding.receive(0.0, granted(3, giving, 2))
    assert holding.may(0.0) == 2


def test_what_was_given_back_is_said_until_a_grant_confirms_it() -> None:
    holding = held(3)
    first = asked(holding, 0.0, keep=0)
    assert asked(holding, 0.0, alone=False).keep is None
    again = asked(holding, 0.1)
    assert (first.keep, again.keep) == (0, 0)
    holding.receive(0.1, granted(2, first, 3))
    assert holding.may(0.1) == 0
    again = asked(holding, 0.1)
    assert again.keep == 0
    holding.receive(0.1, granted(3, again, 0))
    assert asked(holding, 0.2).keep is None


def test_a_lease_that_has_ended_is_given_back_since_grants_may_have_been_lost() -> None:
    holding = held(3)
    holding.start(0.0)
    assert asked(holding, 0.5 * MIN_TTL_S).keep is None
    assert asked(holding, MIN_TTL_S).keep == 1, "what it uses, and no more"
    late = asked(holding, MIN_TTL_S)
    assert late.keep == 1, "until it is confirmed"
    holding.receive(MIN_TTL_S, granted(2, late, 2))
    assert holding.may(MIN_TTL_S) == 2
    assert asked(holding, MIN_TTL_S).keep is None
    assert asked(Holding("a", 1), 9.0).keep is None, "it never had one"


def test_nothing_in_use_is_given_back() -> None:
    holding = held(3)
    holding.start(0.0)
    assert asked(holding, 0.0, keep=0).keep == 1


def test_an_end_without_a_grant_gives_its_slot_back() -> None:
    holding = held(3)
    for _ in range(3):
        holding.start(0.0)
    holding.end(0.0, None)
    assert (holding.uses, holding.free(0.0)) == (2, 0)
    assert asked(holding, 0.0).keep == 2


def test_an_end_without_a_grant_gives_back_nothing_that_is_in_use() -> None:
    holding = held(3)
    for _ in range(3):
        holding.start(0.0)
    holding.receive(0.0, granted(2, asked(holding, 0.0), 1))
    holding.end(0.0, None)
    assert asked(holding, 0.0).keep == 2


def test_a_slot_that_went_back_with_an_end_does_not_come_back_with_a_grant_that_was_under_way() -> None:
    holding = held(3)
    before = asked(holding, 0.0)
    for _ in range(3):
        holding.start(0.0)
    holding.end(0.0, None)
    holding.receive(0.0, granted(2, before, 3))
    assert (holding.may(0.0), holding.free(0.0)) == (2, 0)


def test_to_keep_what_it_has_gives_nothing_back() -> None:
    assert asked(held(3), 0.0, keep=3).keep is None


def test_an_end_with_a_grant_brings_what_the_worker_decided() -> None:
    holding = held(1)
    holding.start(0.0)
    holding.end(0.0, granted(2, asked(holding, 0.0), 0, recall=True))
    assert (holding.free(0.0), holding.recall) == (0, True)


def test_after_its_stream_ended_only_an_answer_to_a_later_ask_counts() -> None:
    holding = Holding("a", 1)
    before = asked(holding, 0.0)
    holding.disconnect()
    holding.receive(0.0, granted(1, before, 3))
    assert holding.may(0.0) == 0
    holding.receive(0.1, granted(2, asked(holding, 0.1), 1))
    assert holding.may(0.1) == 1


def test_after_its_stream_ended_it_asks_as_another_process() -> None:
    holding = held(1)
    holding.disconnect()
    assert (holding.epoch, asked(holding, 0.0).stamp) == (2, (2, 1))


def test_only_an_ask_without_a_request_counts_as_asked() -> None:
    holding = held(1)
    asked(holding, 5.0, alone=False)
    assert holding.asked_at == 0.0
    asked(holding, 6.0)
    assert holding.asked_at == 6.0


def test_a_slot_is_idle_since_the_first_of_them_is() -> None:
    holding = held(1)
    holding.receive(0.5, granted(2, asked(holding, 0.5), 2))
    assert holding.idle_since == 0.0


def test_no_slot_is_idle_after_the_lease_has_ended_and_one_that_is_lent_anew_is_idle_from_then_on() -> None:
    for ended in ("by time", "with its stream"):
        holding = held(1)
        if ended == "with its stream":
            holding.disconnect()
            assert holding.idle_since == inf
        sent = asked(holding, 5.0)
        assert holding.idle_since == inf
        holding.receive(5.1, granted(2, sent, 1))
        assert (holding.free(5.1), holding.idle_since) == (1, 5.1), ended


def test_a_grant_that_came_too_late_to_be_used_leaves_no_slot_idle() -> None:
    holding = held(0)
    sent = asked(holding, 1.0)
    holding.receive(1.0 + MIN_TTL_S, granted(2, sent, 1))
    assert (holding.free(1.0 + MIN_TTL_S), holding.idle_since) == (0, inf)


def test_it_knows_since_when_a_slot_is_idle() -> None:
    holding = held(1, now=5.0)
    assert holding.idle_since == 5.0
    holding.start(5.1)
    assert holding.idle_since == inf
    holding.end(5.2, granted(2, asked(holding, 5.2), 1))
    assert holding.idle_since == 5.2


def test_sending_times_are_kept_for_as_long_as_a_lease_may_last() -> None:
    holding = Holding("a", 1)
    for n in range(MAX_ASKS + 10):
        asked(holding, n * 1e-4)
    assert len(holding._sent) == MAX_ASKS
    asked(holding, 100.0)
    assert len(holding._sent) == 1
