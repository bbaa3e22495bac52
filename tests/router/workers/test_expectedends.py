"""A request may be sent ahead to a full worker, once for each answer that is expected to end soon."""

from __future__ import annotations

from math import inf

from services.router.request import InferenceRequest
from services.router.workers.expectedends import MIN_CLEANED, ExpectedEnds
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Availability, Worker
from tests.router.fleetrig import asked, fleet_of, worker


def ahead(name: str, *, slots: int) -> Worker:
    return worker(name, slots=slots, lookahead="auto")


def taken(fleet: Fleet, ends_at: float) -> InferenceRequest:
    request = asked()
    request.pool, request.ends_at = "m", ends_at
    assert fleet.take(request) is not None
    return request


def test_a_full_worker_is_opened_when_an_answer_is_expected_to_end_within_the_lead() -> None:
    fleet = fleet_of(ahead("a", slots=2))
    for ends_at in (5.0, 9.0):
        taken(fleet, ends_at)
    assert fleet.look_ahead(4.0, "m", lead_s=0.5) == 4.5
    assert not fleet.room("m")
    assert fleet.look_ahead(4.5, "m", lead_s=0.5) == 4.5
    assert fleet.room("m")
    assert fleet.workers[0].availability is Availability.AHEAD


def test_each_expected_end_lets_one_request_be_sent_ahead() -> None:
    fleet = fleet_of(ahead("a", slots=2))
    first = taken(fleet, 5.0)
    taken(fleet, 5.0)
    fleet.look_ahead(5.0, "m", lead_s=0.0)
    taken(fleet, 20.0)
    assert fleet.look_ahead(5.0, "m", lead_s=0.0) == 25.0, "one request waits at the worker, and ends that much later"
    fleet.give_back(fleet.workers[0], first)
    assert fleet.look_ahead(5.0, "m", lead_s=0.0) == 5.0, "the second end is still to come"


def test_of_two_workers_the_one_whose_answer_ends_first_is_opened() -> None:
    fleet = fleet_of(ahead("a", slots=1), ahead("b", slots=1))
    late, soon = taken(fleet, 9.0), taken(fleet, 5.0)
    fleet.look_ahead(5.0, "m", lead_s=0.0)
    assert [one.ahead_open for one in fleet.workers] == [soon in one.held for one in fleet.workers]
    assert late in fleet.workers[0].held


def test_a_place_that_was_opened_is_closed_with_the_end_that_it_was_opened_for() -> None:
    fleet = fleet_of(ahead("a", slots=1))
    request = taken(fleet, 5.0)
    fleet.look_ahead(5.0, "m", lead_s=0.0)
    fleet.give_back(fleet.workers[0], request)
    taken(fleet, 15.0)
    assert not fleet.room("m")


def test_a_worker_that_rests_or_is_lost_is_not_opened() -> None:
    fleet = fleet_of(ahead("a", slots=1), ahead("b", slots=1))
    taken(fleet, 5.0)
    taken(fleet, 5.0)
    fleet.workers[0].resting = True
    fleet.workers[1].health.suspect()
    for one in fleet.workers:
        fleet.looked(one)
    assert fleet.look_ahead(6.0, "m", lead_s=0.0) > 6.0
    assert not fleet.room("m")


def test_nothing_is_sent_ahead_to_a_foreign_server_unless_the_list_says_so_or_where_the_limit_is_learned() -> None:
    for said in ({}, {"lookahead": 0}, {"slots": "auto"}):
        fleet = fleet_of(worker("a", **{"slots": 1, **said}))
        taken(fleet, 5.0)
        assert fleet.look_ahead(6.0, "m", lead_s=0.0) == inf
        assert not fleet.room("m")


def test_requests_that_have_ended_are_forgotten() -> None:
    fleet = fleet_of(ahead("a", slots=1))
    for number in range(10 * MIN_CLEANED):
        fleet.give_back(fleet.workers[0], taken(fleet, float(number)))
    (ends,) = fleet._ends.values()
    assert len(ends._heap) <= MIN_CLEANED
    assert (ends._numbers, ends._workers, ends._aside) == ({}, {}, {})


def test_it_says_what_it_knows() -> None:
    assert repr(ExpectedEnds()) == "<ExpectedEnds of 0 requests, next inf, 0 aside>"
