"""Every assertion of the router sees its fault, and says which values were wrong: each is planted here, from inside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.retries import RetryBudget
from services.router.serving.attempts import Attempts
from services.router.serving.detached import DetachedRequests
from services.router.serving.pipeline import Pipeline
from services.router.tenancy.rates import Rate
from services.router.workers.cancels import Cancels
from services.router.workers.prober import Prober
from services.runtime.errors import Refused
from services.runtime.upstream import ConnectionLost
from tests.pythoncore import python_core
from tests.retrieval.fakes import Lines
from tests.router.fleetrig import asked, fleet_of, probe, worker
from tests.router.house import House, turn
from tests.virtual import run


async def held_without_a_place() -> None:
    one = worker("one", slots=1, lookahead=0)
    for _ in range(2):
        one.hold(asked(), 10.0, 5)


def ledger(kv_tokens: int = 5) -> tuple[Any, list[Any]]:
    one, requests = worker("one"), [asked(), asked()]
    for request in requests:
        one.hold(request, 10.0, kv_tokens)
    return one, requests


async def one_count_too_many() -> None:
    one, (first, _) = ledger()
    one.inflight = 5
    one.release(first, None, overloaded=False)


async def memory_given_back_twice() -> None:
    one, (first, _) = ledger()
    one.held[first] = (10.0, 99)
    one.release(first, None, overloaded=False)


async def somebody_is_left_of_nobody() -> None:
    one, (first, _) = ledger(kv_tokens=0)
    one.inflight = 1
    one.release(first, None, overloaded=False)


async def memory_is_left_of_nobody() -> None:
    one, requests = ledger()
    one.held[requests[0]] = (10.0, 1)
    for request in requests:
        one.release(request, None, overloaded=False)


async def granted_more_than_asked() -> None:
    greedy = asked(answer=5)
    greedy.granted_tokens = 6
    fleet_of(worker("one")).take(greedy)


async def fewer_workers_with_a_place_than_none() -> None:
    one = worker("one", slots=1, lookahead=0)
    fleet = fleet_of(one)
    fleet._open["m"] = 0
    fleet.take(asked())


async def started_above_the_cap() -> None:
    class Full(InflightCap):
        def try_take(self) -> bool:
            return False

    house = House([worker("one")])
    house.dispatcher.cap = Full(3)
    house.admit(turn())


async def fitted_without_a_place() -> None:
    house = House([worker("one")])
    house.fleet.take = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    house.admit(turn())


async def turned_away_with_a_place() -> None:
    house = House([worker("one")])
    house.admit(placed := turn())
    house.dispatcher._reject(placed, Refused(Outcome.DRAINING, "leaving"))


async def a_second_place_beside_the_first() -> None:
    house = House([worker("one")])
    house.admit(placed := turn())
    house.dispatcher._retries.append(placed)
    house.dispatcher._dispatch_retries()


async def a_retry_beyond_the_one() -> None:
    house = House([worker("one")])
    house.admit(placed := turn())
    placed.retried = True
    attempts = Attempts(house.dispatcher, None, RetryBudget(), None)  # type: ignore[arg-type]  # not asked
    attempts._may_retry = lambda *_: True  # type: ignore[method-assign]
    attempts._take_retry(placed, "failed", ConnectionLost("lost"))  # type: ignore[arg-type]


async def a_request_that_ends_twice() -> None:
    request = turn()
    request.outcome = Outcome.SERVED
    Pipeline._settle(None, SimpleNamespace(id="r"), request, Outcome.SERVED, None, 0.0)  # type: ignore[arg-type]


async def over_for_its_client_twice() -> None:
    request = turn()
    request.client_outcome = Outcome.CLIENT_GONE
    detached = DetachedRequests(None, None, hold_s=1.0)  # type: ignore[arg-type]  # not asked
    detached.detach(None, "exchange", request, Outcome.DEADLINE_EXCEEDED)  # type: ignore[arg-type]


async def a_lane_given_back_twice() -> None:
    cancels, one = Cancels(), worker("one")
    cancels.send(one, "a")
    cancels._queues[one].lanes = 0
    (telling,) = cancels._tasks
    await telling


async def a_rate_that_lets_nobody_in() -> None:
    rate = Rate(1.0)
    assert rate.requests is not None
    rate.requests._full_at = float("inf")
    rate.try_take(0.0, 1.0)


FAULTS: list[tuple[Callable[[], Awaitable[None]], str]] = [
    (held_without_a_place, r"<Worker one up, 2/1\+0.* was given <Request"),
    (one_count_too_many, "counts 4 in flight, and 1 held"),
    (memory_given_back_twice, "1 held, -89 KV tokens"),
    (somebody_is_left_of_nobody, "counts 0 in flight, and 1 held"),
    (memory_is_left_of_nobody, "0 held, 4 KV tokens"),
    (granted_more_than_asked, "was granted 6"),
    (fewer_workers_with_a_place_than_none, "-1 workers of m have a place"),
    (started_above_the_cap, "was started above MAX_INFLIGHT: <Dispatcher"),
    (fitted_without_a_place, "fitted, and found no place: <Dispatcher"),
    (turned_away_with_a_place, "is rejected, and has a slot at <Worker one"),
    (a_second_place_beside_the_first, "waits for a place, and has one at <Worker one"),
    (a_retry_beyond_the_one, "has had its retry"),
    (a_request_that_ends_twice, "has ended already"),
    (over_for_its_client_twice, "is over for its client, as client_gone: now deadline_exceeded"),
    (a_lane_given_back_twice, "-1 cancels to <Worker one"),
    (a_rate_that_lets_nobody_in, "1.0 tokens would never be let in: <Rate"),
]


@python_core
@pytest.mark.parametrize(("plant", "told"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], Awaitable[None]], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        run(plant())  # type: ignore[arg-type]  # a coroutine


def test_a_worker_is_looked_at_again_after_a_look_that_met_a_fault_of_ours() -> None:
    lines, looks = Lines(), 0

    async def main() -> None:
        fleet = fleet_of(one := worker("one"))

        def broken(*_: Any) -> None:
            nonlocal looks
            looks += 1
            raise AssertionError("7 places of 3")

        fleet.learn = broken  # type: ignore[method-assign]
        one.upstream.seen = probe  # type: ignore[attr-defined]
        prober = Prober(fleet, interval_s=1.0, log=lines.log, rng=Random(1))
        prober.start()
        await asyncio.sleep(10.0)
        await prober.stop()

    run(main())
    assert looks > 3
    assert "the worker probe failed" in lines.read()
