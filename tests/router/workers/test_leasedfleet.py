"""A fleet whose slots are lent: a request starts only within a lease that lives."""

from __future__ import annotations

from random import Random

from services.core.choices import SchedulerSettings
from services.core.leases.messages import Ask, Grant
from services.core.leases.poolleases import PoolLeases
from services.core.scheduler import Scheduler
from services.router.workers.leasedfleet import LeasedFleet
from services.router.workers.worker import Worker
from services.router.workers.workerlease import WorkerLease
from tests.router.fleetrig import FakeUpstream, asked, probe, spec

TTL_S = 1.0


class Lent:
    """A fleet of workers that lend four slots each, on a clock that the test moves."""

    def __init__(self, workers: int = 1) -> None:
        self.now = 0.0
        self.sent: list[Ask] = []
        self.touches = 0
        specs = [spec(f"w{number}", kind="weir", slots=None, models=()) for number in range(workers)]
        self.workers = [Worker(each, FakeUpstream(), is_shared=True) for each in specs]
        self.fleet = LeasedFleet(self.workers, Random(1), lambda: self.now)
        scheduler = Scheduler(SchedulerSettings(several_routers=True), Random(1).random)
        self.leases = PoolLeases("r0", 1, scheduler, "m", Random(1).random)
        for worker in self.workers:
            self.fleet.learn(worker, probe(slots=4))
            worker.health.answered(0.0, needed=True)
            self.fleet.looked(worker)
            self.leases.borrower.join(0.0, worker.lease_name, 4)
            worker.lease = WorkerLease(worker.lease_name, self.leases, self.sent.append)
            worker.lease.is_up = True
            self.fleet.review(worker)
        self.fleet.on_touch(self._touched)
        self.grants = 0

    def _touched(self, pool: str) -> None:
        self.touches += 1

    def lend(self, may: int, worker: int = 0) -> None:
        """The worker answers an ask that was sent now."""
        lease = self.workers[worker].lease
        assert lease is not None
        ask = lease.holding.ask(self.now, (), quantum=1.0, ttl_s=TTL_S)
        self.grants += 1
        lease.receive(self.now, Grant((1, self.grants), ask.stamp, may, TTL_S, 4))
        self.fleet.granted(self.workers[worker])


def test_a_worker_that_lends_nothing_has_no_room() -> None:
    lent = Lent()
    assert not lent.fleet.room("m")
    assert lent.fleet.take(asked()) is None
    assert lent.workers[0].slots == 0
    assert lent.workers[0].own_slots == 4


def test_as_many_requests_start_as_slots_are_lent() -> None:
    lent = Lent()
    lent.lend(2)
    assert [lent.fleet.take(asked()) for _ in range(3)] == [lent.workers[0]] * 2 + [None]


def test_nothing_starts_after_the_end_of_the_lease() -> None:
    lent = Lent()
    lent.lend(2)
    lent.now = 0.98 * TTL_S
    assert lent.fleet.room("m")
    lent.now = TTL_S
    assert not lent.fleet.room("m")
    assert lent.fleet.take(asked()) is None


def test_a_retry_takes_no_slot_of_a_lease_that_has_ended() -> None:
    lent = Lent()
    lent.lend(2)
    lent.now = 5.0
    assert lent.fleet.take(asked(), None) is None, "without a look at the room before"


def test_the_lease_that_ends_first_ends_alone() -> None:
    lent = Lent(2)
    lent.lend(1, worker=0)
    lent.now = 0.5
    lent.lend(1, worker=1)
    lent.now = 1.2
    assert lent.fleet.take(asked()) is lent.workers[1]
    assert lent.workers[0].slots == 0


def test_a_slot_that_the_answer_takes_away_is_not_used_again() -> None:
    lent = Lent()
    lent.lend(1)
    first = asked()
    assert lent.fleet.take(first) is lent.workers[0]
    lent.fleet.give_back(lent.workers[0], first)
    assert not lent.fleet.room("m"), "it brought no grant, so its slot was given back"
    assert [ask.keep for ask in lent.sent] == [0]


def test_a_worker_that_rests_or_is_held_back_is_not_asked_and_its_slots_count_for_nothing() -> None:
    lent = Lent(2)
    lent.workers[0].held_back = True
    lent.fleet.looked(lent.workers[0])
    lease = lent.workers[0].lease
    assert lease is not None
    assert not lease.holding.usable
    assert lent.leases.borrower.pool_slots == 4
    lent.workers[0].held_back = False
    lent.fleet.looked(lent.workers[0])
    assert lease.holding.usable


def test_a_worker_without_a_stream_counts_for_nothing() -> None:
    lent = Lent(2)
    lease = lent.workers[1].lease
    assert lease is not None
    lease.is_up = False
    lent.fleet.review(lent.workers[1])
    assert lent.leases.borrower.pool_slots == 4


def test_a_probe_does_not_change_what_is_lent() -> None:
    lent = Lent()
    lent.lend(1)
    lent.fleet.learn(lent.workers[0], probe(slots=16))
    assert (lent.workers[0].slots, lent.workers[0].own_slots) == (1, 16)


def test_whoever_looks_for_a_slot_or_gives_one_back_is_noticed() -> None:
    lent = Lent()
    lent.lend(1)
    taken = asked()
    before = lent.touches
    lent.fleet.room("m")
    lent.fleet.take(taken)
    lent.fleet.give_back(lent.workers[0], taken)
    assert lent.touches - before == 3
