"""Who starts, and where: the dispatcher over the real core and a fleet that is only a ledger, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

import pytest

from services.core.account import Bounds, TenantSpec
from services.core.choices import WeirSettings
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.request import Stage
from services.core.weir import Weir
from services.router.call import Busy
from services.router.dispatcher import Dispatcher
from services.router.fleet import Fleet
from services.router.prober import Prober
from services.router.turn import Turn
from services.router.worker import Worker
from services.runtime.errors import NoSuchModel, Refused
from services.runtime.http import become_task
from services.runtime.keepalive import UpstreamError
from services.runtime.log import Log
from tests.router.fleetrig import probe, worker
from tests.virtual_time import run

WELL_AFTER_S = 0.002
"""A timer of the dispatcher may fire a little early, and the client's patience ends a little late."""


@dataclass
class House:
    """A dispatcher and its workers. Rides are requests with a life of their own."""

    workers: list[Worker]
    most: int = 64
    queue: int = 1000
    rides: dict[Turn, asyncio.Task[Outcome]] = field(default_factory=dict)
    started: list[Turn] = field(default_factory=list)
    ends: Counter[Turn] = field(default_factory=Counter)
    refusals: dict[Turn, Refused] = field(default_factory=dict)
    ended_at: dict[Turn, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = Random(1)
        stranger = TenantSpec("", Bounds(self.queue))
        self.weir = Weir(WeirSettings(Bounds(self.queue), stranger, strict=True), rng.random)
        self.fleet = Fleet(self.workers, rng)
        self.cap = InflightCap(self.most)
        self.dispatcher = Dispatcher(self.weir, self.fleet, self.cap, rng)
        self.dispatcher.capacity_changed()

    def admit(self, turn: Turn) -> Refused | None:
        refusal = self.dispatcher.admit(now(), turn)
        if refusal is not None:
            self.refusals[turn] = refusal
        return refusal

    def ride(self, turn: Turn, life: Callable[[Turn], Coroutine[Any, Any, None]]) -> asyncio.Task[Outcome]:
        """Admit it now; what it does with its place is `life`. It is released once, however that ends."""
        assert self.admit(turn) is None
        return self.begin(turn, life)

    def begin(self, turn: Turn, life: Callable[[Turn], Coroutine[Any, Any, None]]) -> asyncio.Task[Outcome]:
        """As a connection begins a handler: its first step at once, and the rest in a task."""
        riding = self._ride(turn, life)
        riding.send(None)
        task = self.rides[turn] = asyncio.create_task(riding)
        return task

    async def _ride(self, turn: Turn, life: Callable[[Turn], Coroutine[Any, Any, None]]) -> Outcome:
        outcome = Outcome.CLIENT_GONE
        try:
            await become_task()
            await self.dispatcher.place(turn)
            self.started.append(turn)
            await life(turn)
            outcome = Outcome.SERVED
        except Refused as refusal:
            self.refusals[turn] = refusal
            outcome = refusal.outcome
        finally:
            self.ends[turn] += 1
            self.ended_at[turn] = now()
            self.dispatcher.release(now(), turn, outcome, turn.prompt_tokens, 10.0)
        return outcome

    def serve(self, turn: Turn, seconds: float = 1.0) -> asyncio.Task[Outcome]:
        """A request that holds its place so long."""
        return self.ride(turn, lambda _: asyncio.sleep(seconds))

    def hold(self, turn: Turn) -> asyncio.Task[Outcome]:
        """One that holds its place until it is cancelled."""
        return self.ride(turn, lambda _: asyncio.Event().wait())  # type: ignore[arg-type, return-value]  # its True

    async def again(self, turn: Turn, seconds: float = 1.0) -> None:
        """Its worker failed; a second place, and then the answer."""
        await self.dispatcher.another(turn)
        await asyncio.sleep(seconds)

    def down(self, *workers: Worker) -> None:
        for lost in workers:
            lost.health.suspect()
            self.fleet.looked(lost)

    def up(self, *workers: Worker) -> None:
        for back in workers:
            back.health.answered(now(), needed=True)
            self.fleet.looked(back)

    def check(self) -> None:
        """What holds between any two turns of the loop."""
        dispatcher, cap = self.dispatcher, self.cap
        running = [turn for turn in self.rides if turn.stage is Stage.RUNNING]
        seconds = [turn for turn in running if turn.worker is None]
        placed = sum(of.inflight for of in {*self.fleet.workers, *self.fleet.leaving, *self.workers})
        assert cap.inflight == len(running) <= cap.cap
        assert placed == len(running) - len(seconds)
        assert {id(turn) for turn in dispatcher.waiting} == {
            id(turn) for turn in self.rides if turn.stage is Stage.WAITING
        }
        assert self.weir.drr.usage.requests == len(dispatcher.waiting)
        assert not [turn for turn in running if turn.worker is not None and turn not in turn.worker.held]
        if cap.inflight < cap.cap:
            heads = [turn for turn in dispatcher.waiting if turn.flow.line.first is turn]
            assert not [turn for turn in heads if self.fleet.fits(turn)], "a slot is free, and one that fits it waits"

    async def empty(self) -> None:
        """Everyone has ended, and nothing is held."""
        await asyncio.gather(*self.rides.values(), return_exceptions=True)
        self.check()
        assert (self.cap.inflight, self.weir.drr.usage.requests, self.dispatcher.waiting) == (0, 0, set())
        assert not any(of.inflight or of.work_tokens or of.kv_held_tokens for of in self.workers)
        assert not any(of_pool.estimator.busy for of_pool in self.weir.learned.values())
        assert set(self.ends.values()) <= {1}
        assert len(self.ends) == len(self.rides)


def now() -> float:
    return asyncio.get_running_loop().time()


def turn(tenant: str = "t", *, model: str = "m", within_s: float = 100.0, **fields: Any) -> Turn:
    fields = {"prompt_tokens": 10, "max_tokens": 10, **fields}
    return Turn("r", tenant, now(), now() + within_s, model=model, **fields)


@pytest.fixture
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[Turn]:
    """Every task that was told to look."""
    woken: list[Turn] = []
    wake = Turn.wake

    def counted(self: Turn) -> None:
        if self.waiter is not None:
            woken.append(self)
        wake(self)

    monkeypatch.setattr(Turn, "wake", counted)
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


def test_a_slot_that_comes_free_wakes_one_and_no_herd(wakes: list[Turn]) -> None:
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
        estimator = house.weir.learned["m"].estimator
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


# ---- the house


def test_a_drain_turns_away_all_who_wait_and_lets_the_others_end() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        runs = house.serve(turn(), 5)
        waits = [turn(), turn(ready=False)]
        for each in waits:
            house.serve(each)
        await asyncio.sleep(1)
        house.dispatcher.drain()
        for each in waits:
            assert await house.rides[each] is Outcome.DRAINING
            assert (house.refusals[each].status, house.refusals[each].retry) == (503, True)
            assert house.refusals[each].details.retry_hint_ms is not None
        refused = house.admit(turn())
        assert refused is not None
        assert refused.outcome is Outcome.DRAINING
        assert await runs is Outcome.SERVED
        await house.empty()

    run(main())


def test_more_capacity_starts_those_who_wait_at_once_and_less_takes_nothing_back() -> None:
    async def main() -> None:
        of_two = worker("a", kind="weir", slots=None, models=())
        house = House([of_two, worker("b", slots=2)])
        house.down(house.workers[1])
        house.fleet.learn(of_two, probe(2))
        for _ in range(8):
            house.serve(turn(), 10)
        assert house.cap.inflight == 2
        house.up(house.workers[1])
        assert house.cap.inflight == 4
        house.fleet.learn(of_two, probe(1))
        house.down(house.workers[1])
        house.check()
        assert (house.cap.inflight, house.weir.learned["m"].estimator.slots) == (4, 1)
        await asyncio.sleep(11)
        house.check()
        assert house.cap.inflight == 1
        house.up(house.workers[1])
        await house.empty()
        assert len(house.started) == 8

    run(main())


def test_who_waits_while_every_worker_is_lost_starts_when_one_is_back_or_is_told_in_time() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        house.serve(turn(), 1)
        patient, tight = turn(within_s=50), turn(within_s=5)
        for each in (patient, tight):
            house.serve(each)
        house.down(*house.workers)
        refused = house.admit(turn())
        assert refused is not None
        assert (refused.outcome, refused.status) == (Outcome.NO_CAPACITY, 503)
        assert refused.details.retry_hint_ms is not None
        assert await house.rides[tight] is Outcome.DEADLINE_EXPIRED
        await asyncio.sleep(10)
        house.up(*house.workers)
        assert await house.rides[patient] is Outcome.SERVED
        await house.empty()

    run(main())


def test_a_model_whose_workers_are_all_lost_is_refused_though_its_pool_lives_on() -> None:
    async def main() -> None:
        house = House([worker("a", models=("m", "n")), worker("b", models=("n", "o"))])
        house.down(house.workers[1])
        refused = house.admit(turn(model="o"))
        assert refused is not None
        assert refused.outcome is Outcome.NO_CAPACITY
        assert house.admit(turn(model="n")) is None

    run(main())


def test_the_cap_holds_over_all_pools_and_they_take_turns_at_it() -> None:
    async def main() -> None:
        house = House([worker("a", models=("m",)), worker("b", models=("n",)), worker("c", models=("o",))], most=2)
        for model in "mno" * 20:
            house.serve(turn(model=model))
            house.check()
        await house.empty()
        for at in range(6, 54, 6):
            assert Counter(each.model for each in house.started[at : at + 6]) == Counter(m=2, n=2, o=2)

    run(main())


def test_a_full_pool_holds_up_no_other() -> None:
    async def main() -> None:
        house = House([worker("a", models=("m",), slots=1), worker("b", models=("n",), slots=1)])
        for _ in range(3):
            house.hold(turn(model="m"))
        assert await house.serve(turn(model="n")) is Outcome.SERVED
        for riding in house.rides.values():
            riding.cancel()
        await house.empty()

    run(main())


def test_a_model_is_the_one_asked_for_or_the_first_and_a_stranger_is_none() -> None:
    async def main() -> None:
        house = House([worker("a", models=("m", "n"))])
        assert (house.dispatcher.resolve_model(None), house.dispatcher.resolve_model("n")) == ("m", "n")
        with pytest.raises(NoSuchModel):
            house.dispatcher.resolve_model("x")
        with pytest.raises(Refused) as refused:
            House([]).dispatcher.resolve_model(None)
        assert (refused.value.outcome, refused.value.retry) == (Outcome.NO_CAPACITY, True)

    run(main())


# ---- the second place


def test_a_retry_goes_before_all_who_wait_and_to_another_worker() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1)])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        first = failed.worker
        house.serve(turn(), 5)
        waits = [turn() for _ in range(4)]
        for each in waits:
            house.serve(each, 10)
        await asyncio.sleep(1)
        assert failed.worker is None
        house.check()
        assert house.cap.inflight == 3  # it keeps its place under the cap, and its worker's slot has the next
        assert [each.worker for each in waits] == [first, None, None, None]
        await riding
        assert failed.left is first
        assert house.ended_at[failed] == 6
        await house.empty()

    run(main())


def test_a_retry_alone_with_its_worker_gets_it_again() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        failed = turn()
        assert await house.ride(failed, lambda turn: house.again(turn)) is Outcome.SERVED
        assert failed.left is house.workers[0]
        await house.empty()

    run(main())


def test_a_retry_that_waits_for_others_takes_its_own_worker_when_they_die() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1)])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        first = failed.worker
        other = next(of for of in house.workers if of is not first)
        holding = house.hold(turn())
        await asyncio.sleep(1)
        assert failed.worker is None
        house.down(other)
        assert failed.worker is first
        assert await riding is Outcome.SERVED
        holding.cancel()
        await house.empty()

    run(main())


def test_a_retry_with_nobody_left_alive_is_refused_for_want_of_capacity() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1)])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        house.hold(turn())
        await asyncio.sleep(1)
        house.down(*house.workers)
        assert await riding is Outcome.NO_CAPACITY
        assert (house.refusals[failed].status, house.refusals[failed].retry) == (503, True)
        for each in house.rides.values():
            each.cancel()
        await house.empty()

    run(main())


def test_a_retry_that_is_placed_and_cancelled_in_one_turn_leaks_nothing() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1)])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        holding = house.hold(turn())
        await asyncio.sleep(1)
        assert failed.worker is None
        holding.cancel()
        while failed.worker is None:
            await asyncio.sleep(0)
        riding.cancel()
        await house.empty()

    run(main())


def test_a_lone_worker_that_refuses_is_tried_again_once_its_delay_is_over_and_no_later() -> None:
    async def main() -> None:
        house = House([worker("a", slots=2)])
        log = Log("test", "ERROR")
        prober = Prober(house.fleet, 1.0, log, Random(1))
        refused = turn()

        async def busy(turn: Turn) -> None:
            prober.refused(house.workers[0], Busy(500))
            await house.dispatcher.another(turn, overloaded=True)

        assert await house.ride(refused, busy) is Outcome.SERVED
        assert house.ended_at[refused] == pytest.approx(0.5, abs=0.01)
        await house.empty()
        log.close()

    run(main())


def test_failures_in_a_row_are_those_between_which_nothing_was_served() -> None:
    async def main() -> None:
        house = House([worker("a"), worker("b")])
        log = Log("test", "ERROR")
        prober = Prober(house.fleet, 1.0, log, Random(1))
        for _ in range(20):
            prober.failed(house.workers[0])
            prober.failed(house.workers[1])
            await asyncio.gather(*(house.serve(turn()) for _ in range(4)))
        assert all(of.healthy for of in house.workers)
        prober.suspect(house.workers[0], UpstreamError("lost"))
        assert not house.workers[0].healthy
        await house.empty()
        log.close()

    run(main())


def test_nothing_that_is_refused_at_the_door_leaves_a_trace() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)], queue=2)
        for _ in range(3):
            house.hold(turn())
        refused = [house.admit(turn()) for _ in range(50)]
        assert {each.outcome for each in refused if each} == {Outcome.TENANT_QUEUE_FULL}
        assert all(each is not None and each.details.retry_hint_ms for each in refused)
        assert len(house.dispatcher.waiting) == 2
        house.check()
        for riding in house.rides.values():
            riding.cancel()
        await house.empty()
        assert house.weir.wakes_at() == inf

    run(main())
