"""Every assertion of the leases sees its fault, and says which values were wrong: each is planted here, from inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.core.leases.book import LeaseBook
from services.core.leases.holding import Holding
from services.core.ring import Ring
from services.core.schedulable import Schedulable
from tests.core.leases.rig import Worker, want


def an_end_of_a_request_that_does_not_run() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.book.end(0.0, "a", 1)


def an_end_of_an_unknown_process() -> None:
    LeaseBook(1, 1).end(0.0, "a", 1)


def an_end_without_a_lease_of_what_does_not_run() -> None:
    LeaseBook(1, 1).end_without_lease(0.0)


def a_slot_promised_twice() -> None:
    worker = Worker(1)
    worker.asks(0.0, "a", want(1))
    worker.book.leases()[0].may = 2
    worker.asks(0.0, "b")


def a_start_without_a_slot() -> None:
    Holding("a", 1).start(0.0)


def an_end_of_nothing_in_flight() -> None:
    Holding("a", 1).end(0.0, None)


def a_ring_with_work_that_is_moved() -> None:
    ring: Ring[Schedulable] = Ring(10.0)
    ring.add_backlog(0.0, Schedulable(1.0))
    ring.advance(50.0)


FAULTS: list[tuple[Callable[[], None], str]] = [
    (an_end_of_a_request_that_does_not_run, "a request of a ended that did not run: <BookedLease of a/1: 0 run"),
    (an_end_of_an_unknown_process, "a request of a/1 ended that did not run: <LeaseBook 0 of 1"),
    (
        an_end_without_a_lease_of_what_does_not_run,
        "a request without a lease ended that did not run: <LeaseBook 0 of 1",
    ),
    (a_slot_promised_twice, "2 slots are promised, of 1: <LeaseBook"),
    (a_start_without_a_slot, "a request starts without a slot: <Holding of a: uses 0 of 0"),
    (an_end_of_nothing_in_flight, "a request ended that was not in flight: <Holding of a: uses -1"),
    (a_ring_with_work_that_is_moved, "<Ring round 0.* has work, and is set to 50"),
]


@pytest.mark.parametrize(("plant", "message"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        plant()
