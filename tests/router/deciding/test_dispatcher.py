"""The line, its clocks and its races: the dispatcher over the real core, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from services.core.outcome import Outcome
from services.core.request import Stage
from services.router.request import InferenceRequest
from tests.router.fleetrig import worker
from tests.router.house import House, now, turn
from tests.virtual import run

WELL_AFTER_S = 0.002
"""A timer of the dispatcher may fire a little early, and the client's patience ends a little late."""


@pytest.fixture
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[InferenceRequest]:
    """Every task that was told to look."""
    woken: list[InferenceRequest] = []
    wake = InferenceRequest.wake

    def counted(self: InferenceRequest) -> None:
        if self.waiter is not None:
            woken.append(self)
        wake(self)

    monkeypatch.setattr(InferenceRequest, "wake", counted)
    return woken


# ---- the line


def test_one_that_finds_a_free_slot_starts_in_the_step_that_admits_it() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        first, second = turn(), turn()
        assert house.admit(first) is None
        assert (first.stage, first.worker) == (Stage.RUNNING, house.workers[0])
        assert house.admit(second) is None
        assert (second.stage, second.worker) == (Stage.WAITING, None)

    run(main())


def test_a_slot_that_comes_free_wakes_one_and_no_herd(wakes: list[InferenceRequest]) -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        for _ in range(50):
            house.serve(turn())
        await house.empty()
        assert len(wakes) == 49
        assert len(set(wakes)) == 49

    run(main())


def test_within_a_tenant_the_first_due_goes_first_and_tenants_take_turns() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        house.serve(turn("x"))
        late, soon = turn("x", within_s=90), turn("x", within_s=50)
        other = turn("y")
        for each in (late, soon, other):
            house.serve(each)
        await house.empty()
        assert house.started.index(soon) < house.started.index(late)
        flood = House([worker("a", slots=1)])
        for _ in range(20):
            flood.serve(turn("heavy", prompt_tokens=500, max_tokens=500))
        light = turn("light", prompt_tokens=500, max_tokens=500)
        flood.serve(light)
        await flood.empty()
        assert flood.started.index(light) <= 3

    run(main())


def test_one_whose_passages_are_not_here_is_passed_over_and_starts_when_they_are() -> None:
    async def main() -> None:
        house = House([worker("a", slots=2)])
        looking = turn(ready=False, context_tokens=50)
        riding = house.serve(looking)
        other = turn()
        house.serve(other)
        assert (looking.stage, other.stage) == (Stage.WAITING, Stage.RUNNING)
        await asyncio.sleep(0.1)
        house.dispatcher.ready(now(), looking, 33)
        assert (looking.stage, looking.prompt_tokens, looking.context_tokens) == (Stage.RUNNING, 33, 0)
        await riding
        await house.empty()

    run(main())


def test_one_that_left_while_its_passages_were_fetched_is_not_started_by_them() -> None:
    async def main() -> None:
        house = House([worker("a")])
        looking = turn(ready=False)
        riding = house.serve(looking)
        await asyncio.sleep(0.1)
        riding.cancel()
        await house.empty()
        house.dispatcher.ready(now(), looking, 5)
        assert looking.worker is None
        house.check()

    run(main())


# ---- time


def test_one_whose_time_is_up_is_told_at_that_moment_though_nothing_else_happens() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        holding = house.hold(turn(within_s=1000))
        slow, quick = turn(within_s=9), turn(within_s=3)
        for each in (slow, quick):
            house.serve(each)
        await asyncio.gather(house.rides[slow], house.rides[quick])
        assert house.ended_at[quick] == pytest.approx(3, abs=WELL_AFTER_S)
        assert house.ended_at[slow] == pytest.approx(9, abs=WELL_AFTER_S)
        refusal = house.refusals[quick]
        assert (refusal.outcome, refusal.details.reason, refusal.retry) == (Outcome.DEADLINE_EXPIRED, "deadline", False)
        assert refusal.details.retry_hint_ms is None
        holding.cancel()
        await house.empty()

    run(main())


def test_patience_ends_in_a_yield_with_a_hint() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        holding = house.hold(turn(within_s=1000))
        patient = turn(start_by=now() + 2)
        assert await house.serve(patient) is Outcome.YIELD
        assert house.ended_at[patient] == pytest.approx(2, abs=0.01)
        refusal = house.refusals[patient]
        assert (refusal.details.reason, refusal.details.status, refusal.retry) == ("no_slot", "yield", True)
        assert refusal.details.retry_hint_ms is not None
        holding.cancel()
        await house.empty()

    run(main())


def test_patience_that_begins_with_the_passages_ends_on_time_though_nothing_else_happens() -> None:
    async def main() -> None:
        house = House([worker("a", slots=2)])
        holding = house.hold(turn(within_s=1000))
        looking = turn(start_by=now() + 2, ready=False)
        riding = house.serve(looking)
        late = house.hold(turn(within_s=1000))
        await asyncio.sleep(5)
        house.dispatcher.ready(now(), looking, 5)
        assert await riding is Outcome.YIELD
        assert house.ended_at[looking] == pytest.approx(7, abs=0.01)
        holding.cancel()
        late.cancel()
        await house.empty()

    run(main())


def test_a_first_token_that_cannot_come_in_time_ends_the_wait() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        holding = house.hold(turn(within_s=1000))
        stream = turn(first_token_by=now() + 2)
        assert await house.serve(stream) is Outcome.DEADLINE_EXPIRED
        assert house.ended_at[stream] == pytest.approx(2, abs=WELL_AFTER_S)
        assert house.refusals[stream].details.reason == "first_token"
        holding.cancel()
        await house.empty()

    run(main())


def test_one_that_fits_no_more_at_its_turn_is_evicted_and_the_next_has_the_slot() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        house.serve(turn("x"), 5)
        tight, loose = turn("x", within_s=20), turn("x", within_s=1000)
        for each in (tight, loose):
            house.serve(each)
        estimator = house.scheduler.pools["m"].estimator
        for _ in range(50):
            estimator.learn_prefill(100, 10)  # a hundred seconds to read what has just been let in
        assert await house.rides[tight] is Outcome.DEADLINE_EXPIRED
        assert house.ended_at[tight] == loose.started_at == 5
        await house.empty()

    run(main())


# ---- races


def test_one_that_is_woken_and_cancelled_in_one_turn_gives_its_slot_to_the_next() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        holding = house.hold(turn())
        unlucky, next_one = turn(), turn()
        for each in (unlucky, next_one):
            house.serve(each)
        await asyncio.sleep(1)
        holding.cancel()
        while unlucky.worker is None:  # the holder's task ends, and with it this one is placed, but has not looked
            await asyncio.sleep(0)
        house.rides[unlucky].cancel()
        await house.empty()
        assert house.started[1:] == [next_one]

    run(main())


def test_one_that_is_cancelled_before_it_looks_for_its_place_leaks_none() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        turns = [turn() for _ in range(3)]
        for each in turns:
            assert house.admit(each) is None
            house.begin(each, lambda _: asyncio.sleep(1))
        house.rides[turns[0]].cancel()
        house.rides[turns[1]].cancel()
        await house.empty()
        assert turns[2] in house.started

    run(main())


def test_one_that_is_turned_away_and_cancelled_in_one_turn_ends_once() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        holding = house.hold(turn(within_s=1000))
        late = turn(within_s=3)
        riding = house.serve(late)
        while late.refusal is None:
            await asyncio.sleep(0.1)
        riding.cancel()
        holding.cancel()
        await house.empty()

    run(main())


@pytest.mark.parametrize("leaves", [False, True], ids=["its time is up", "its client leaves"])
def test_who_stood_behind_one_that_fits_nowhere_starts_in_the_moment_that_one_is_gone(leaves: bool) -> None:
    async def main() -> None:
        both = ("m", "n")
        house = House([worker("a", slots=1), worker("b", slots=1, models=both)])
        busy = house.hold(turn(model="n"))
        first = house.ride(turn(model="n", within_s=1.0), lambda _: asyncio.sleep(1.0))
        behind = turn(model="m", within_s=50.0)
        riding = house.serve(behind)
        assert behind.stage is Stage.WAITING  # `a` is free, and not for the one that is first
        if leaves:
            first.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(1.01)
        assert behind.stage is Stage.RUNNING
        await riding
        busy.cancel()
        await house.empty()

    run(main())
