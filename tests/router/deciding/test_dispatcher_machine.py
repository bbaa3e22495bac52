"""The dispatcher under whatever may happen, in any order: hypothesis looks for a sequence that breaks its ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.policies import Policies
from services.core.request import Stage
from services.router.request import InferenceRequest
from services.router.workers.worker import Worker
from tests.router.fleetrig import probe, worker
from tests.router.house import House, now, turn
from tests.virtual import new_loop

MODELS = {"a": ("m",), "b": ("m", "n"), "c": ("o",)}
SECONDS = st.sampled_from([0.0, 0.01, 0.5, 1.0, 5.0, 60.0])


class Arrival(NamedTuple):
    tenant: str
    model: str
    within_s: float
    patience_s: float | None
    first_token_s: float | None
    size: int
    retrieval_s: float | None
    faults: list[tuple[float, bool]]
    seconds: float


ARRIVALS = st.builds(
    Arrival,
    st.sampled_from("xyz"),
    st.sampled_from("mno"),
    st.sampled_from([1000.0, 0.001, 1.0, 10.0]),
    st.sampled_from([None, 0.0, 2.0]),
    st.sampled_from([None, 3.0]),
    st.integers(1, 50),
    st.sampled_from([None, 0.0, 0.1, 3.0]),
    st.lists(st.tuples(SECONDS, st.booleans()), max_size=2),
    SECONDS,
)


class Machine(RuleBasedStateMachine):
    """Requests come, wait, run, fail, retry and leave; workers grow, shrink, fall ill, drain, leave and return."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = new_loop()

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(step)

    @initialize(most=st.integers(1, 8), kv_tokens=st.sampled_from([None, 60]), queue=st.integers(2, 30))
    def open(self, most: int, kv_tokens: int | None, queue: int) -> None:
        async def step() -> None:
            workers = [
                worker(name, kind="weir", slots=None, models=(), kv_tokens=kv_tokens if name == "a" else None)
                for name in MODELS
            ]
            self.house = House(workers, most=most, queue=queue)
            for each in workers:
                self.house.fleet.learn(each, probe(1, MODELS[each.name], kv_tokens=each.kv_tokens))

        self.run(step())

    # ---- requests

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=8))
    def arrive(self, arrivals: list[Arrival]) -> None:
        async def step() -> None:
            for arrival in arrivals:
                self._arrives(arrival)

        self.run(step())

    def _arrives(self, arrival: Arrival) -> None:
        fields: dict[str, Any] = {"prompt_tokens": arrival.size, "max_tokens": arrival.size}
        if arrival.patience_s is not None:
            fields["start_by"] = now() + arrival.patience_s
        if arrival.first_token_s is not None:
            fields["first_token_by"] = now() + arrival.first_token_s
        one = turn(
            arrival.tenant,
            model=arrival.model,
            within_s=arrival.within_s,
            ready=arrival.retrieval_s is None,
            affinity=arrival.size % 3,
            **fields,
        )
        if self.house.admit(one) is None:
            self.house.begin(one, lambda turn: self._live(turn, arrival))
            if arrival.retrieval_s is not None:
                self.loop.call_later(arrival.retrieval_s, self._found, one)

    def _found(self, one: InferenceRequest) -> None:
        self.house.dispatcher.ready(now(), one, one.prompt_tokens)

    async def _live(self, turn: InferenceRequest, arrival: Arrival) -> None:
        """At its worker: failures first, each after a while; then the answer, if it comes in time."""
        async with asyncio.timeout_at(turn.deadline):
            for after_s, overloaded in arrival.faults:
                await asyncio.sleep(after_s)
                turn.overloaded = overloaded
                await self.house.dispatcher.requeue_for_retry(turn)
            await asyncio.sleep(arrival.seconds)

    @precondition(lambda self: self.house.rides)
    @rule(number=st.integers(0, 1000), other=st.integers(0, 1000))
    def leave(self, number: int, other: int) -> None:
        """Two clients leave in one turn of the loop: one that holds a place, perhaps, and one that would be next."""

        async def step() -> None:
            rides = list(self.house.rides.values())
            rides[-1 - number % min(len(rides), 6)].cancel()
            await asyncio.sleep(0)
            rides[-1 - other % min(len(rides), 6)].cancel()

        self.run(step())

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 3.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(admission=st.booleans(), fairness=st.booleans())
    def switch(self, admission: bool, fairness: bool) -> None:
        async def step() -> None:
            self.house.dispatcher.switch(Policies(admission, fairness))
            await asyncio.sleep(0.001)  # whose time is up by it is told in the next turn of the loop

        self.run(step())

    # ---- workers

    def _worker(self, number: int) -> Worker:
        return self.house.workers[number]

    @rule(number=st.integers(0, 2), slots=st.integers(0, 3), draining=st.booleans())
    def announces(self, number: int, slots: int, draining: bool) -> None:
        async def step() -> None:
            of = self._worker(number)
            self.house.fleet.learn(of, probe(slots, MODELS[of.name], draining=draining, kv_tokens=of.kv_tokens))

        self.run(step())

    @rule(number=st.integers(0, 2))
    def falls_ill(self, number: int) -> None:
        async def step() -> None:
            self.house.down(self._worker(number))

        self.run(step())

    @rule(number=st.integers(0, 2))
    def is_well(self, number: int) -> None:
        async def step() -> None:
            self.house.up(self._worker(number))

        self.run(step())

    @rule(number=st.integers(0, 2), resting=st.booleans())
    def rests(self, number: int, resting: bool) -> None:
        async def step() -> None:
            self._worker(number).resting = resting
            self.house.fleet.looked(self._worker(number))

        self.run(step())

    # ---- what always holds

    @invariant()
    def the_ledger_is_right(self) -> None:
        if not hasattr(self, "house"):
            return
        self.house.check()
        assert set(self.house.ends.values()) <= {1}
        for of in self.house.workers:
            assert of.inflight == len(of.held)
        late = [one for one in self.house.dispatcher.waiting if one.expires_at < self.loop.time() - 0.001]
        assert not late, "its time is up, and it has not been told"

    def teardown(self) -> None:
        async def end() -> None:
            for of in self.house.workers:
                of.resting = False
                self.house.fleet.learn(of, probe(2, MODELS[of.name], kv_tokens=of.kv_tokens))
                self.house.up(of)
            await self.house.empty()
            assert not [one for one in self.house.rides if one.stage is not Stage.ENDED]

        if hasattr(self, "house"):
            self.run(end())
        self.loop.close()


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestTheDispatcher = Machine.TestCase
