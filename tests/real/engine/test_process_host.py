"""What a host promises, on both; and that behind a process the same comes out as in front of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.runtime.errors import BadInput
from services.worker.engine import Sequence, Step
from services.worker.engine_executor import EngineExecutor, LocalExecutor
from services.worker.engine_wire import Simulated
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.process import EngineProcess
from tests.real.engine.process_rig import asking

SPEC = Simulated(
    slots=3, kv_tokens=60, context_tokens=40, prefill_chunk_tokens=4, step_ms=0.0, per_sequence_ms=0.0,
    prefill_ms_per_token=0.0,
)  # fmt: skip


def local() -> LocalExecutor:
    """The same engine, in this process."""
    return LocalExecutor(
        SimulatedEngine(
            model=SPEC.model,
            slots=SPEC.slots,
            kv_tokens=SPEC.kv_tokens,
            context_tokens=SPEC.context_tokens,
            prefill_chunk_tokens=SPEC.prefill_chunk_tokens,
            latency=LatencyModel(0, 0, 0),
            chance=random.Random(0),
        )
    )


@dataclass
class Stage:
    """A started host and the loop that it lives on."""

    executor: EngineExecutor
    runner: asyncio.Runner

    def prepare(self, id: str = "a", tokens: int = 4, prompt: str = "one two three") -> Sequence:
        return self.runner.run(self.executor.prepare(asking(id, tokens, prompt)))

    def admit(self, id: str = "a", tokens: int = 4, prompt: str = "one two three") -> Sequence:
        sequence = self.prepare(id, tokens, prompt)
        self.executor.admit(sequence)
        return sequence

    def step(self) -> Step:
        return self.runner.run(self.executor.step())


@pytest.fixture(scope="module")
def behind() -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        executor = EngineProcess(SPEC, start_within_s=60)
        runner.run(executor.start())
        yield Stage(executor, runner)
        runner.run(executor.stop())


@pytest.fixture
def emptied(behind: Stage) -> Stage:
    """Whatever the test before has left is gone."""
    behind.runner.run(behind.executor.restart())
    return behind


@pytest.fixture(params=["local", "process"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if request.param == "process":
        yield request.getfixturevalue("emptied")
        return
    with asyncio.Runner() as runner:
        executor = local()
        runner.run(executor.start())
        yield Stage(executor, runner)
        runner.run(executor.stop())


def test_facts(stage):
    executor = stage.executor
    facts = (
        executor.name,
        executor.model,
        executor.slots,
        executor.kv_tokens,
        executor.context_tokens,
        executor.kv_usage,
    )
    assert facts == ("simulated", "weir-sim", 3, 60, 40, 0.0)
    assert (executor.expected.step_ms, executor.expected.prefill_ms_per_token) == (0.0, 0.0)


def test_a_prompt_is_counted_and_takes_no_slot(stage):
    for _ in range(5):
        sequence = stage.prepare()
        assert (sequence.id, sequence.prompt_tokens, sequence.unread_tokens) == ("a", 3, 3)
        assert (sequence.completion_tokens, sequence.reserved_tokens) == (0, 7)
    assert stage.executor.kv_usage == 0.0


def test_one_that_can_never_run_is_refused_with_the_engines_words(stage):
    with pytest.raises(BadInput) as raised:
        stage.prepare(tokens=38)
    bad = raised.value
    assert (bad.param, bad.status, bad.code) == ("max_tokens", 400, "context_length_exceeded")
    assert "context of 40 tokens" in bad.message


def test_no_slot_and_no_memory_raise_at_once(stage):
    first = stage.admit("first", 30)
    stage.admit("second", 14)
    wide, narrow = stage.prepare("wide", 14), stage.prepare("narrow", 3)
    with pytest.raises(RuntimeError, match="without memory for 17"):
        stage.executor.admit(wide)
    stage.executor.admit(narrow)
    with pytest.raises(RuntimeError, match="without a free slot"):
        stage.executor.admit(wide)
    stage.executor.drop(first)
    stage.executor.admit(wide)


def test_a_long_prompt_is_read_in_chunks_and_the_others_go_on(stage):
    writes = stage.admit("writes", 9)
    stage.step()
    long, short = stage.prepare("long", 4, "w " * 5), stage.prepare("short", 9)
    short.deadline = 1.0  # the sooner one is read first, though it comes later
    for sequence in (long, short):
        stage.executor.admit(sequence)
    told = []
    for _ in range(3):
        step = stage.step()
        told.append((step.prefill_tokens, long.unread_tokens, short.unread_tokens, len(step.tokens)))
    assert told == [(4, 5, 0, 2), (4, 1, 0, 2), (1, 0, 0, 3)]
    assert (writes.completion_tokens, short.completion_tokens, long.completion_tokens) == (4, 3, 1)


def test_the_last_token_comes_with_the_end_and_the_slot_is_free(stage):
    sequence = stage.admit("a", 2)
    first, last = stage.step(), stage.step()
    assert ([owner for owner, _ in first.tokens], first.finished) == ([sequence], [])
    assert ([owner for owner, _ in last.tokens], last.finished) == ([sequence], [(sequence, "length")])
    assert sequence.completion_tokens == 2
    stage.executor.drop(sequence)  # it may just have finished: ignored
    for id in "bcd":
        stage.admit(id)
    with pytest.raises(RuntimeError, match="without a free slot"):
        stage.admit("e")


def test_whoever_is_dropped_yields_nothing_more(stage):
    leaver, stays = stage.admit("leaver"), stage.admit("stays")
    stage.step()
    stage.step()
    stage.executor.drop(leaver)
    step = stage.step()
    assert (step.batch_size, [owner for owner, _ in step.tokens]) == (1, [stays])
    assert (leaver.completion_tokens, stays.completion_tokens) == (2, 2)


def test_an_id_may_be_used_by_two_at_once(stage):
    one, other = stage.admit("same"), stage.admit("same")
    stage.step()
    stage.executor.drop(one)
    stage.step()
    stage.step()
    assert (one.completion_tokens, other.completion_tokens) == (1, 2)


def test_a_new_engine_runs_nobody(stage):
    running = [stage.admit(id) for id in "abc"]
    stage.step()
    for sequence in running:
        stage.executor.drop(sequence)
    stage.runner.run(stage.executor.restart())
    assert stage.executor.kv_usage == 0.0
    stage.admit("d", 37)
    assert stage.step().batch_size == 1


@dataclass
class Player:
    """Plays one schedule on one host, and writes down everything that can be seen of it."""

    stage: Stage
    sequences: list[Sequence] = field(default_factory=list)
    seen: list[object] = field(default_factory=list)
    running: set[int] = field(default_factory=set)

    def play(self, schedule: list[tuple]) -> list[object]:
        try:
            for verb, *arguments in schedule:
                self.seen.append((verb, getattr(self, verb)(*arguments)))
                self.seen.append([(each.unread_tokens, each.completion_tokens) for each in self.sequences])
        finally:  # the next schedule begins with nobody
            for sequence in self.sequences:
                self.stage.executor.drop(sequence)
            self.stage.executor.rest()
        return self.seen

    def prepare(self, words: int, tokens: int, seed: int, deadline: float) -> object:
        try:
            sequence = self.stage.prepare(f"r{seed}", tokens, " ".join(["word"] * words) + f" {seed}")
        except BadInput as bad:
            return bad.message
        sequence.deadline = deadline
        self.sequences.append(sequence)
        return sequence.prompt_tokens

    def admit(self, which: int) -> object:
        index = which % max(1, len(self.sequences))
        if not self.sequences or index in self.running or self.sequences[index].completion_tokens:
            return None
        try:
            self.stage.executor.admit(self.sequences[index])
        except RuntimeError as error:
            return "without memory" in str(error)
        self.running.add(index)
        return "admitted"

    def drop(self, which: int) -> object:
        """Of one that runs, one that is done, or one that was never admitted, which is then gone."""
        if self.sequences:
            index = which % len(self.sequences)
            self.stage.executor.drop(self.sequences[index])
            self.running.discard(index)
            self.sequences[index].completion_tokens += 1000  # not to be admitted again
        return None

    def rest(self) -> object:
        if not self.running:
            self.stage.executor.rest()
        return None

    def step(self) -> object:
        if not self.running:
            return None
        step = self.stage.step()
        index = {id(sequence): number for number, sequence in enumerate(self.sequences)}
        finished = [(index[id(sequence)], reason) for sequence, reason in step.finished]
        self.running -= {number for number, _ in finished}
        tokens = [(index[id(sequence)], text) for sequence, text in step.tokens]
        executor = self.stage.executor
        return (
            step.batch_size,
            step.prefill_tokens,
            step.duration_s,
            tokens,
            finished,
            executor.kv_usage,
            executor.slots,
        )


SCHEDULES = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), st.integers(1, 12), st.integers(1, 30), st.integers(0, 9), st.integers(0, 5)),
        st.tuples(st.just("admit"), st.integers(0, 20)),
        st.tuples(st.just("drop"), st.integers(0, 20)),
        st.tuples(st.just("step")),
        st.tuples(st.just("step")),
        st.tuples(st.just("rest")),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES)
def test_behind_a_process_the_same_comes_out_as_in_front_of_it(emptied, schedule):
    with asyncio.Runner() as runner:
        here = Player(Stage(local(), runner)).play(schedule)
    there = Player(emptied).play(schedule)
    assert there == here
