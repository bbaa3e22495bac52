"""Workers that come and go, pools, drains, and the second place of a retry: the dispatcher in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from random import Random

import pytest

from services.core.outcome import Outcome
from services.router.deciding.dispatcher import NO_WORKER_GRACE_S
from services.router.request import InferenceRequest
from services.router.upstreams.call import Busy
from services.router.workers.prober import Prober
from services.runtime.errors import NoSuchModel, Refused
from services.runtime.log import Log
from tests.router.fleetrig import connect, probe, worker
from tests.router.house import House, turn
from tests.virtual import run


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
        assert (house.cap.inflight, house.scheduler.pools["m"].estimator.slots) == (4, 1)
        await asyncio.sleep(11)
        house.check()
        assert house.cap.inflight == 1
        house.up(house.workers[1])
        await house.empty()
        assert len(house.started) == 8

    run(main())


def test_who_comes_while_every_worker_is_lost_is_refused_at_once_and_who_waits_starts_when_one_is_back() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        house.serve(turn(), 1)
        waits = turn(within_s=50)
        house.serve(waits)
        house.down(*house.workers)
        refused = house.admit(turn())
        assert refused is not None
        assert (refused.outcome, refused.status) == (Outcome.NO_CAPACITY, 503)
        assert refused.details.retry_hint_ms is not None
        await asyncio.sleep(NO_WORKER_GRACE_S / 2)
        house.up(*house.workers)
        assert await house.rides[waits] is Outcome.SERVED
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
        assert failed.failed_worker is first
        assert house.ended_at[failed] == 6
        await house.empty()

    run(main())


def test_a_retry_alone_with_its_worker_gets_it_again() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        failed = turn()
        assert await house.ride(failed, lambda turn: house.again(turn)) is Outcome.SERVED
        assert failed.failed_worker is house.workers[0]
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


def test_a_retry_with_nobody_left_alive_is_refused_for_want_of_capacity_when_that_has_lasted() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1)])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        house.hold(turn())
        await asyncio.sleep(1)
        house.down(*house.workers)
        assert await riding is Outcome.NO_CAPACITY
        assert house.ended_at[failed] == pytest.approx(1 + NO_WORKER_GRACE_S, abs=0.01)
        assert (house.refusals[failed].status, house.refusals[failed].retry) == (503, True)
        for each in house.rides.values():
            each.cancel()
        await house.empty()

    run(main())


def test_a_retry_waits_for_a_worker_that_is_back_in_a_moment_as_those_in_line_do() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1)])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        house.down(*house.workers)  # the one was killed; of the other a probe was missed
        await asyncio.sleep(NO_WORKER_GRACE_S / 2)
        assert failed.worker is None
        house.check()
        house.up(house.workers[1])
        assert failed.worker is house.workers[1]
        assert await riding is Outcome.SERVED
        await house.empty()

    run(main())


def test_a_retry_of_a_model_that_has_left_the_list_waits_for_nobody() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1), worker("b", slots=1, models=("n",))])
        failed = turn()
        riding = house.ride(failed, lambda turn: house.again(turn))
        house.fleet.reload([house.workers[1].spec], connect)
        assert await riding is Outcome.NO_CAPACITY
        assert house.ended_at[failed] == 0
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

        async def busy(turn: InferenceRequest) -> None:
            turn.overloaded = True
            prober.refused(house.workers[0], Busy(500))
            await house.dispatcher.requeue_for_retry(turn)

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
        assert house.scheduler.wakes_at() == inf

    run(main())


def test_who_waits_for_nobody_is_told_so_and_who_waits_for_a_moment_is_served() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        holding, waits = house.hold(turn()), turn(within_s=60)
        riding = house.serve(waits)
        await asyncio.sleep(1)
        house.down(*house.workers)  # a connection was lost; the next probe finds it well
        await asyncio.sleep(0.2)
        house.up(*house.workers)
        await asyncio.sleep(2)
        assert waits in house.dispatcher.waiting
        house.down(*house.workers)
        began = asyncio.get_running_loop().time()
        assert await riding is Outcome.NO_CAPACITY
        assert house.ended_at[waits] - began == pytest.approx(NO_WORKER_GRACE_S, abs=0.01)
        assert (house.refusals[waits].status, house.refusals[waits].retry) == (503, True)
        holding.cancel()
        await house.empty()

    run(main())
