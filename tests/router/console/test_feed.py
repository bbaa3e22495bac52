"""The console's frame: what it shows is what happens next, it is bounded whatever comes, and it changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from services.contracts.console import Frame
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.router.console.feed import MAX_DECISIONS, Feed
from services.router.console.tables import MAX_HEADS, MAX_RUNNING, MAX_RUNNING_TOTAL, MAX_TENANTS, MAX_WORKERS
from services.router.parsing.slo import RequestSLO
from services.router.telemetry.journal import UNWATCHED_RECORDS, Journal
from services.router.telemetry.metrics import RouterMetrics
from services.runtime.drain import Drain
from services.runtime.errors import Refused
from services.runtime.telemetry import new_registry
from tests.router.fleetrig import worker
from tests.router.house import House, now, turn
from tests.virtual import run


class Watched:
    """A house, its journal and its feed."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.journal, self.metrics = Journal(), RouterMetrics(new_registry())
        self.feed = Feed(house.dispatcher, self.metrics, self.journal, Drain())

    def frame(self) -> Frame:
        return self.feed.frame(now())

    def ended(self, id: str, outcome: Outcome, took_s: float, *, deadline_s: float = 2.0) -> None:
        ended = turn(within_s=deadline_s)
        ended.id, ended.arrived_at, ended.charge_tokens = id, now() - took_s, 50.0
        ended.slo, ended.admitted, ended.outcome = RequestSLO(deadline_s * 1000, deadline_s * 1000), True, outcome
        failure = None if outcome is Outcome.SERVED else Refused(outcome, "no", reason="why")
        self.journal.ended(ended, failure, now())


def one_slot() -> Watched:
    return Watched(House([worker("one", slots=1)]))


async def starts(house: House, tenants: int) -> list[str]:
    """The tenants in the order in which each starts next."""
    seen = len(house.started)
    while len({started.tenant for started in house.started[seen:]}) < tenants:
        await asyncio.sleep(0.5)
    return list(dict.fromkeys(started.tenant for started in house.started[seen:]))


def test_tenants_stand_in_the_order_in_which_they_are_served_next() -> None:
    async def main() -> None:
        watched = one_slot()
        house = watched.house
        for tenant, tokens in [("ann", 10), ("bob", 900), ("cyd", 400), ("dan", 60), ("eve", 2500)] * 5:
            house.serve(turn(tenant, within_s=1000.0, max_tokens=tokens))
        for _ in range(8):
            await asyncio.sleep(0.1)  # whoever has been given the slot has taken it
            told = [each for each in watched.frame().tenants if each.place is not None]
            assert [each.place for each in told] == list(range(len(told)))
            assert [each.id for each in told] == await starts(house, len(told))
        await house.empty()

    run(main())


def test_with_fairness_off_they_stand_in_the_order_of_their_first_requests() -> None:
    async def main() -> None:
        watched = one_slot()
        house = watched.house
        house.dispatcher.switch(replace(Policies(), fairness=False))
        for tenant in ("ann", "dan", "bob", "bob", "cyd", "ann"):
            house.serve(turn(tenant))
        frame = watched.frame()
        assert frame.policy.fairness is False
        assert [each.id for each in frame.tenants] == ["dan", "bob", "cyd", "ann"]
        assert {each.deficit_tokens for each in frame.tenants} == {0.0}
        await house.empty()

    run(main())


def test_a_line_is_told_by_its_heads_and_their_ages() -> None:
    async def main() -> None:
        watched = one_slot()
        house = watched.house
        for within_s in (50.0, 10.0, 40.0):
            house.serve(turn("ann", within_s=within_s), seconds=20.0)
        await asyncio.sleep(4.0)
        (ann,) = watched.frame().tenants
        assert (ann.waiting, ann.running, ann.heads) == (2, 1, [0.4, 0.1])
        (one,) = watched.frame().workers
        assert (one.inflight, one.slots, one.requests[0].of_deadline) == (1, 1, 0.08)
        await house.empty()

    run(main())


def test_looking_changes_nothing() -> None:
    async def order(look: bool) -> list[str]:
        watched = one_slot()
        for tenant, tokens in [("ann", 10), ("bob", 900), ("cyd", 400)] * 6:
            watched.house.serve(turn(tenant, within_s=1000.0, max_tokens=tokens))
        while len(watched.house.started) < 18:
            if look:
                watched.frame()
            await asyncio.sleep(0.25)
        return [started.tenant for started in watched.house.started]

    assert run(order(look=True)) == run(order(look=False))


def test_a_frame_is_bounded_with_ten_thousand_tenants_and_two_hundred_workers() -> None:
    async def main() -> None:
        fleet = [worker(f"w{number:03}", slots=40) for number in range(200)]
        watched = Watched(House(fleet, most=8000, queue=20_000))
        house = watched.house
        for number in range(10_000):
            assert house.admit(turn(f"tenant-{number}", within_s=1e6)) is None
            watched.ended(f"r{number}", Outcome.DEADLINE_INFEASIBLE if number % 3 else Outcome.CLIENT_GONE, 0.1)
        for _ in range(100):
            house.admit(turn("tenant-9999", within_s=1e6))
        frame = watched.frame()
        assert (len(frame.tenants), len(frame.workers), frame.other_workers) == (MAX_TENANTS, MAX_WORKERS, 168)
        assert frame.other_tenants.tenants == 10_000 - MAX_TENANTS
        shown = sum(tenant.waiting for tenant in frame.tenants)
        assert shown + frame.other_tenants.waiting == frame.waiting.requests == 10_000 + 100 - 8000
        assert max(len(tenant.heads) for tenant in frame.tenants) <= MAX_HEADS
        assert max(len(each.requests) for each in frame.workers) == MAX_RUNNING
        assert sum(len(each.requests) for each in frame.workers) == MAX_RUNNING_TOTAL
        assert len(frame.decisions) == MAX_DECISIONS
        assert len(msgspec.json.encode(frame)) < 100_000

    run(main())


def test_of_more_tenants_than_are_told_those_who_run_come_before_those_who_are_idle() -> None:
    async def main() -> None:
        watched = one_slot()
        for number in range(50):
            watched.house.serve(turn(f"idle-{number}", within_s=1000.0), seconds=0.01)
        await watched.house.empty()
        assert watched.frame().tenants == []
        watched.house.serve(turn("zoe"))
        await asyncio.sleep(0.1)
        frame = watched.frame()
        assert [(each.id, each.position, each.running) for each in frame.tenants] == [("zoe", "away", 1)]
        assert frame.other_tenants.tenants == 50
        await watched.house.empty()

    run(main())


def test_what_did_not_fit_since_the_frame_before_is_counted() -> None:
    async def main() -> None:
        watched = one_slot()
        assert watched.frame().decisions == []
        for number in range(100):
            watched.ended(str(number), Outcome.SERVED, 0.1)
        await asyncio.sleep(0.2)
        frame = watched.frame()
        assert (len(frame.decisions), frame.decisions_left_out, frame.decided) == (MAX_DECISIONS, 60, 100)
        await asyncio.sleep(0.2)
        again = watched.frame()
        assert (again.decisions_left_out, again.decisions[-1].n) == (0, 100)

    run(main())


def test_what_was_decided_while_nobody_looked_is_over_and_not_missing() -> None:
    async def main() -> None:
        watched = one_slot()
        watched.frame()
        for number in range(100):
            watched.ended(str(number), Outcome.SERVED, 0.1)
        await asyncio.sleep(60.0)
        frame = watched.frame()
        assert (frame.decisions_left_out, frame.decisions[-1].n) == (0, 100)

    run(main())


def test_latency_is_that_of_what_was_served_within_the_last_second() -> None:
    async def main() -> None:
        watched = one_slot()
        watched.ended("old", Outcome.SERVED, 9.0)
        await asyncio.sleep(1.5)
        assert watched.frame().latency.count == 0
        assert watched.frame().got_tokens_per_s == 25.0  # over two seconds
        for took_s in (0.1, 0.2, 0.3, 1.5):
            watched.ended("new", Outcome.SERVED, took_s)
        watched.ended("late", Outcome.DEADLINE_EXCEEDED, 8.0)
        latency = watched.frame().latency
        assert (latency.count, latency.p50_ms, latency.p95_ms) == (4, 300.0, 1500.0)
        assert (latency.deadline_p50_ms, latency.of_deadline_p95) == (2000.0, 0.75)

    run(main())


def test_what_was_got_is_told_over_the_time_that_is_remembered_and_a_look_makes_it_remember_more() -> None:
    async def main() -> None:
        watched = one_slot()
        for _ in range(2 * UNWATCHED_RECORDS):
            watched.ended("unseen", Outcome.SERVED, 0.1)
            await asyncio.sleep(0.005)
        assert watched.frame().got_tokens_per_s == pytest.approx(50.0 / 0.005, rel=0.02), (
            "half of them in half the time"
        )
        for _ in range(2 * UNWATCHED_RECORDS):
            watched.ended("seen", Outcome.SERVED, 0.1)
            await asyncio.sleep(0.005)
        assert len(watched.journal.served_since(now() - 1.0, 10 * UNWATCHED_RECORDS)[0]) == pytest.approx(200, abs=1)
        assert watched.frame().got_tokens_per_s == pytest.approx(50.0 / 0.005, rel=0.02)

    run(main())


def test_a_decision_tells_when_it_fell_and_why() -> None:
    async def main() -> None:
        watched = one_slot()
        watched.ended("r", Outcome.DEADLINE_INFEASIBLE, 0.0)
        await asyncio.sleep(0.5)
        frame = watched.frame()
        (decision,) = frame.decisions
        assert (decision.id, decision.what, decision.outcome) == ("r", "refuse", "deadline_infeasible")
        assert (decision.why, decision.tenant) == ("why", "t")
        assert decision.at_ms == frame.at_ms - 500

    run(main())
