"""Whatever is taken, given back, announced, lost, reloaded, in whatever order: the ledger stays right.

The machine keeps books of its own, by request, and compares. What holds after every step:

    each worker's requests, work and memory are those of the requests it was given and has not been given back
    nobody is let in at or above places or memory (where these do not shrink, the ledger never exceeds them)
    the lines, the room of each pool and the slots are what looking at every worker would find
    every change of what admission sees (slots, who is alive, models) has been told
"""

from __future__ import annotations

from math import isclose
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.router.request import InferenceRequest
from services.router.workers.fleet import Fleet, kv_tokens
from services.router.workers.worker import Availability, Worker
from services.router.workers.workersfile import WorkerSpec
from tests.router.fleetrig import asked, connect, probe, spec

NAMES = [f"w{number}" for number in range(12)]
MODELS = [("m",), ("m", "n"), ("n",), ("o",)]

entries = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "kind": st.sampled_from(["weir", "openai"]),
        "slots": st.sampled_from([1, 2, 5, "auto"]),
        "lookahead": st.sampled_from([0, 1, "auto"]),
        "models": st.sampled_from(MODELS),
        "url": st.sampled_from(["http://here", "http://there"]),
    }
)
seen = st.builds(
    probe,
    slots=st.integers(1, 5),
    models=st.sampled_from(MODELS),
    draining=st.booleans(),
    kv_tokens=st.sampled_from([None, None, 20, 60]),
)


def entry(drawn: dict[str, Any]) -> WorkerSpec:
    if drawn["kind"] == "weir":
        return spec(**{**drawn, "slots": None, "models": ()})
    return spec(**{**drawn, "lookahead": 0 if drawn["slots"] == "auto" else drawn["lookahead"]})


class Ledger(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet([], Random(0))
        self.held: dict[InferenceRequest, tuple[Worker, float, int]] = {}
        self.told: Any = None

    @initialize(
        drawn=st.lists(entries, max_size=12, unique_by=lambda drawn: str(drawn["name"])), seed=st.integers(0, 9)
    )
    def begin(self, drawn: list[dict[str, Any]], seed: int) -> None:
        self.fleet = Fleet([connect(entry(one)) for one in drawn], Random(seed))
        self.fleet.on_change(self.hear)
        self.hear()

    def hear(self) -> None:
        self.check_lines()  # whoever listens may take at once: all must be in order by then
        self.told = self.visible()

    def visible(self) -> Any:
        fleet = self.fleet
        slots = {pool: fleet.slots(pool) for pool in fleet.pools}
        return (slots, {model: fleet.alive(model) for model in fleet.models})

    def workers(self) -> list[Worker]:
        return [*self.fleet.workers, *self.fleet.leaving]

    # ---- what may happen

    @rule(
        model=st.sampled_from(["m", "n", "o", "unknown"]),
        work=st.floats(0, 1e6),
        sizes=st.tuples(st.integers(0, 30), st.integers(1, 30)),
        affinity=st.integers(0, 3),
        excluded=st.none() | st.integers(0, 11),
        count=st.integers(1, 5),
        granted=st.integers(0, 30),
    )
    def take(
        self,
        model: str,
        work: float,
        sizes: tuple[int, int],
        affinity: int,
        excluded: int | None,
        count: int,
        granted: int,
    ) -> None:
        for _ in range(count):
            self.take_one(
                asked(model=model, work=work, prompt=sizes[0], answer=sizes[1], affinity=affinity), excluded, granted
            )

    def take_one(self, turn: InferenceRequest, excluded: int | None, granted: int) -> None:
        fleet = self.fleet
        out = fleet.workers[excluded % len(fleet.workers)] if excluded is not None and fleet.workers else None
        fits = fleet.fits(turn, out)
        assert fits == any(one is not out and self.could(one, turn) for one in fleet.workers)
        turn.pool, turn.ends_at = fleet.pool_of(turn.model) or turn.model, turn.charge_tokens
        if fits:  # between the two, the core grants
            turn.granted_tokens = granted and min(granted, turn.max_tokens)
        open_now = [one for one in fleet.workers if one is not out and self.could(one, turn)]
        taken = fleet.take(turn, out)
        assert fits == (taken is not None)
        if taken is None:
            return
        assert taken in open_now
        if any(one.inflight < one.slots for one in open_now if one is not taken):
            assert taken.inflight <= taken.slots, "a look-ahead place was used while a slot was free"
        self.held[turn] = (taken, max(turn.charge_tokens, 1.0), kv_tokens(turn))

    def could(self, worker: Worker, turn: InferenceRequest) -> bool:
        if not worker.live or worker.resting or turn.model not in worker.models:
            return False
        ahead = worker.lookahead if worker.ahead_always or worker.ahead_open else 0
        if worker.inflight >= worker.slots + ahead:
            return False
        sizes = [one.kv_tokens for one in self.fleet.workers if one.live and turn.model in one.models]
        largest = max(size or 0 for size in sizes) if all(size is not None for size in sizes) else None
        hopeless = largest is not None and turn.prompt_tokens + turn.max_tokens > largest
        needed = 0 if hopeless else kv_tokens(turn)
        return worker.kv_tokens is None or worker.kv_held_tokens + needed <= worker.kv_tokens

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 10**6), pace=st.none() | st.floats(1e-3, 1e3), overloaded=st.booleans())
    def give_back(self, which: int, pace: float | None, overloaded: bool) -> None:
        turn = list(self.held)[which % len(self.held)]
        worker = self.held.pop(turn)[0]
        turn.charge_tokens = turn.prompt_tokens = 10**9  # settled meanwhile
        self.fleet.give_back(worker, turn, pace=pace, overloaded=overloaded)
        if worker.leaving:
            assert worker.upstream.closed == (not worker.inflight)  # type: ignore[attr-defined]  # a fake

    @rule(pool=st.sampled_from(["m", "n", "o", "unknown"]), by=st.floats(0, 1e6))
    def look_ahead(self, pool: str, by: float) -> None:
        """Only a full worker of which an end is due is opened, and for one request."""
        before = {worker for worker in self.workers() if worker.ahead_open}
        at = self.fleet.look_ahead(by, pool, lead_s=0.0)
        opened = {worker for worker in self.workers() if worker.ahead_open} - before
        assert len(opened) == (at <= by)
        for worker in opened:
            assert worker.live
            assert worker.inflight == worker.slots
            assert worker.availability is Availability.AHEAD
            assert any(turn.ends_at <= by and turn.pool == pool for turn in worker.held)

    @precondition(lambda self: self.workers())
    @rule(which=st.integers(0, 11), seen=seen, up=st.booleans())
    def announce(self, which: int, seen: Any, up: bool) -> None:
        worker = self.workers()[which % len(self.workers())]
        if up:
            worker.health.answered(0.0, needed=True)
        self.fleet.learn(worker, seen)

    @precondition(lambda self: self.fleet.workers)
    @rule(which=st.integers(0, 11), what=st.sampled_from(["lost", "rests", "rested"]))
    def lose(self, which: int, what: str) -> None:
        worker = self.fleet.workers[which % len(self.fleet.workers)]
        if what == "lost":
            worker.health.suspect()
        else:
            worker.resting = what == "rests"
        self.fleet.looked(worker)

    @rule(drawn=st.lists(entries, max_size=12, unique_by=lambda drawn: str(drawn["name"])))
    def reload(self, drawn: list[dict[str, Any]]) -> None:
        self.fleet.reload([entry(one) for one in drawn], connect)
        assert [one.name for one in self.fleet.workers] == [one["name"] for one in drawn]

    # ---- what must hold

    @invariant()
    def the_books_agree(self) -> None:
        holding = {worker for worker, _, _ in self.held.values()}
        assert holding <= set(self.workers())
        assert all(worker.inflight for worker in self.fleet.leaving)
        for worker in self.workers():
            own = {turn: weights for turn, (at, *weights) in self.held.items() if at is worker}
            assert set(worker.held) == set(own)
            assert worker.inflight == len(own) >= 0
            assert worker.kv_held_tokens == sum(kv for _, kv in own.values()) >= 0
            assert isclose(worker.work_tokens, sum(work for work, _ in own.values()), rel_tol=1e-9, abs_tol=1e-3)
            if worker.limit is not None:
                assert (worker.limit.inflight, worker.limit.cap) == (worker.inflight, worker.slots)

    @invariant()
    def check_lines(self) -> None:
        fleet = self.fleet
        for worker in fleet.workers:
            assert worker.availability is worker.current_availability()
        for model in fleet.models:
            serving = [one for one in fleet.workers if model in one.models]
            line = fleet._candidates[model]
            assert line.live == {one for one in serving if one.live}
            assert set(line.free.workers) == {one for one in serving if one.availability is Availability.FREE}
            assert set(line.ahead.workers) == {one for one in serving if one.availability is Availability.AHEAD}
        for pool in fleet.pools:
            here = [one for one in fleet.workers if pool in one.pools and one.availability >= Availability.AHEAD]
            assert fleet.room(pool) == bool(here)
            assert fleet._open[pool] == len(here)

    @invariant()
    def every_change_was_told(self) -> None:
        assert self.told is None or self.told == self.visible()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=100, stateful_step_count=40)
