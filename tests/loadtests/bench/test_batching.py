"""The arithmetic of the measurements of batching: what is asked, what counts, what is compared. Not the speed."""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.bench.batching import load
from loadtests.bench.batching.bench import outline, result
from loadtests.bench.batching.counted import Counted
from loadtests.bench.batching.load import Ask
from loadtests.bench.batching.runs import Run, Way, request, stepped
from loadtests.bench.batching.section import Section, middle, numbers_table
from loadtests.bench.batching.stall import Seen, joined
from loadtests.bench.batching.throughput import Occupancy, alternated, check
from loadtests.bench.batching.worker import Watched, answer, asking, turning
from loadtests.bench.engine_process import Spent, in_turns
from loadtests.load.figures import quantile_of
from loadtests.report.figure import Figure
from loadtests.report.result import markdown, write
from services.core.batcher import Batching
from services.worker.engine import Sequence, Step
from services.worker.engine_executor import LocalExecutor
from services.worker.engines.simulated import LatencyModel, SimulatedEngine

VOCABULARY = 100
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@pytest.mark.parametrize("count", [16, 64, 200])
def test_a_twentieth_of_the_answers_is_at_least_eight_times_as_long_as_the_middle(count):
    lengths = load.lengths(count, 16)
    assert quantile_of(lengths, 0.95) / quantile_of(lengths, 0.5) >= 8
    assert min(lengths) >= 1


def test_the_same_is_asked_in_every_run_and_prompts_have_the_promised_sizes():
    asked = load.asks(64, median_tokens=16, vocabulary=VOCABULARY)
    assert asked == load.asks(64, median_tokens=16, vocabulary=VOCABULARY)
    assert sorted(ask.length for ask in asked) == load.lengths(64, 16)
    assert [ask.length for ask in asked] != load.lengths(64, 16)
    assert all(8 <= len(ask.prompt) <= 64 for ask in asked)
    assert {number for ask in asked for number in ask.prompt} <= set(range(load.SPECIAL_TOKENS, VOCABULARY))


def test_a_quantile_is_the_least_sample_that_the_share_does_not_exceed():
    assert [quantile_of(range(1, 101), share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert quantile_of([7.0], 0.99) == 7.0
    assert str(quantile_of([], 0.5)) == "nan"


def static_steps(wanted: list[int], slots: int) -> int:
    """A batch lasts as long as its longest."""
    return sum(max(wanted[start : start + slots]) for start in range(0, len(wanted), slots))


def continuous_steps(wanted: list[int], slots: int) -> int:
    """The next one takes the slot that is free first."""
    ends = [0] * slots
    for length in wanted:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


class Echo(SimulatedEngine):
    """Needs no time to read, and answers with the prompt's numbers, over and over."""

    def __init__(self, slots: int) -> None:
        latency = LatencyModel(1, 0, 0)
        super().__init__(model="m", slots=slots, kv_tokens=10**6, latency=latency, chance=random.Random(1))

    def prepare(self, request):
        sequence = super().prepare(request)
        sequence.prompt_tokens = sequence.unread_tokens = 0  # nothing is read, so nothing of it is held
        return sequence

    def step(self) -> Step:
        step = super().step()
        step.tokens[:] = [(sequence, spoken(sequence)) for sequence, _ in step.tokens]
        return step


def spoken(sequence: Sequence) -> str:
    numbers = sequence.request.prompt.split()
    return numbers[(sequence.completion_tokens - 1) % len(numbers)]


def echo(asked: list[Ask]) -> list[tuple[int, ...]]:
    return [tuple(ask.prompt[place % len(ask.prompt)] for place in range(ask.length)) for ask in asked]


@given(LENGTHS, st.integers(1, 5), st.sampled_from(Batching))
def test_a_load_through_an_engine_takes_the_steps_that_its_lengths_need_and_mixes_no_answers(lengths, slots, batching):
    asked = [Ask(number, (number, number + 1), length) for number, length in enumerate(lengths)]
    run = stepped("", Echo(slots), batching).answer(asked)
    expected = static_steps if batching is Batching.STATIC else continuous_steps
    assert len(run.steps) == expected(lengths, slots)
    assert run.tokens == echo(asked)
    assert sum(count for _, count in run.steps) == sum(lengths)


def test_only_tokens_that_were_asked_for_are_useful():
    run = Run([(1, 2, 3), (4,)], Spent(wall_s=0.5, cpu_s=9.0), steps=[(0.1, 8)] * 100)
    assert run.useful_tokens_per_s == 8


def test_answers_are_compared_whole():
    run = Run([(1, 2), (3,)], Spent(1, 1))
    assert [run.equal_to(other) for other in ([(1, 2), (3,)], [(1, 2), (3, 4)], [(1,), (4,)])] == [2, 1, 0]


class Judge:
    """A model in whose view token 3 is as good as token 2, and token 4 is not."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact

    def behind(self, ids: tuple[int, ...], token: int, best: int) -> float:
        assert (ids, best) == ((9, 1), 2)
        return {3: 1e-6, 4: 0.5}[token]


def test_an_answer_that_batching_has_changed_is_a_fault_but_for_a_tie_and_for_formats_that_round():
    def checked(tokens, *, exact=True):
        run = Run([tokens], Spent(1, 1), steps=[(1.0, 1)])
        check(Judge(exact=exact), [Ask(0, (9,), 3)], {"a": [run]}, Run([(1, 2, 5)], Spent(1, 1)))

    checked((1, 2, 5))
    checked((1, 3, 7))
    checked((1, 4, 5), exact=False)
    for tokens in ((1, 4, 5), (1, 2)):
        with pytest.raises(AssertionError, match="a: answer 0 is another one"):
            checked(tokens)


def test_ways_take_turns_in_the_other_direction_each_round():
    told = []
    ways = [Way(name, lambda asked, name=name: told.append(name) or Run([(1,)], Spent(1, 1))) for name in "abc"]
    runs = alternated(ways, [], 3, lambda line: None)
    assert "".join(told) == "abccbaabc"
    assert {name: len(several) for name, several in runs.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_request_wants_exactly_its_length_and_its_prompt_by_numbers():
    asked = request(Ask(3, (5, 6), 7))
    assert (asked.prompt, asked.max_tokens, asked.temperature, asked.ignore_eos) == ("5 6", 7, 0.0, True)


class Numbered:
    vocabulary = VOCABULARY


def test_the_gaps_that_are_looked_at_begin_with_the_long_prompt_and_leave_the_engine_empty():
    latency = LatencyModel(0.1, 0, 0)
    engine = SimulatedEngine(
        model="m", slots=8, kv_tokens=10**6, prefill_chunk_tokens=100, latency=latency, chance=random.Random(1)
    )
    seen = Seen("in chunks of 100")
    joined(Numbered(), engine, seen)
    joined(Numbered(), engine, seen)
    assert len(seen.since) == 2 * -(-engine.prepare(request(Ask(0, tuple(range(1500)), 1))).prompt_tokens // 100)
    assert len(seen.first_token) == 2
    assert engine.running == 0


def simulated(slots: int = 2) -> SimulatedEngine:
    return SimulatedEngine(
        model="m", slots=slots, kv_tokens=10**6, latency=LatencyModel(1, 0, 0), chance=random.Random(1)
    )


def test_a_token_computed_for_one_who_was_dropped_is_counted_by_the_engine_itself(tmp_path):
    class Stubborn(SimulatedEngine):
        def drop(self, sequence):
            """Keeps it."""

    honest, stubborn = tmp_path / "honest", tmp_path / "stubborn"
    latency = LatencyModel(1, 0, 0)
    evil = Stubborn(model="m", slots=2, kv_tokens=10**6, latency=latency, chance=random.Random(1))
    for engine, record in ((simulated(), honest), (evil, stubborn)):
        counted = Counted(engine, record)
        leaver, stayer = (counted.prepare(asking(id, 3, 20)) for id in ("leaver", "stayer"))
        counted.admit(leaver)
        counted.admit(stayer)
        while leaver.completion_tokens < 2:
            counted.step()
        counted.drop(leaver)
        for _ in range(3):
            counted.step()
        counted.close()
    good, bad = (json.loads(record.read_text()) for record in (honest, stubborn))
    assert (good["dropped"], good["tokens_after_drop"], good["rows_too_many"]) == (1, 0, 0)
    assert (bad["dropped"], bad["tokens_after_drop"], bad["rows_too_many"]) == (1, 3, 3)


def test_a_watched_host_says_which_step_was_the_first_for_whom():
    async def main():
        watched = Watched(LocalExecutor(simulated(slots=1)))
        async with turning(watched, slots=1) as loop:
            first, second = [await loop.submit(asking(id, 2, 3)) for id in ("a", "b")]
            texts = [await answer(first), await answer(second)]
        return watched, first, second, texts

    watched, first, second, texts = asyncio.run(main())
    (a, begun_a, at_a), (b, begun_b, at_b) = watched.admitted
    assert (a, b) == (first.sequence, second.sequence)
    assert 1 == begun_a < begun_b <= watched.started
    assert at_a < at_b
    assert all(texts)


def test_repeated_figures_are_shown_with_their_extremes():
    assert [middle([3.0, 1.0, 2.0]), middle([1.5])] == ["2.00 (1.00-3.00)", "1.50"]


def test_the_page_says_what_ran_where_and_how_many_targets_held():
    figures = [
        Figure("faster", 2.5, "times", 2.0),
        Figure("slower", 3, "times", 2, at_least=False),
        Figure("b", 1, "s"),
    ]
    section = Section("A part", "What ran.", figures, [numbers_table(("", "ms"), [("one", "1.00")]), "A note."])
    made = result([section], Occupancy("a model", [], []))
    text = markdown(made, command="python -m loadtests.bench batching", machine="2 cores of a Quern")
    assert "Written by `python -m loadtests.bench batching`, on 2 cores of a Quern." in text
    assert "1 of 2 targets held" in text
    assert "| A part | faster | 2.50 times | ≥ 2.00 times | held |  |" in text
    assert "|  | slower | 3.00 times | ≤ 2.00 times | **missed** |  |" in text
    assert "| one | 1.00 |" in text
    assert "A note." in text
    assert "<picture>" not in text
    assert 'src="run.svg"' in markdown(made, command="", machine="", name="run", drawn=[""])


def test_steps_are_compared_over_the_same_sequences_which_are_gone_afterwards():
    class There:
        """An engine of this process behind the face of one in another."""

        pid = os.getpid()

        def __init__(self, engine):
            self.engine, self.rested = engine, False
            self.admit, self.drop = engine.admit, engine.drop

        async def prepare(self, request):
            return self.engine.prepare(request)

        async def step(self):
            return self.engine.step()

        def rest(self):
            self.rested = True

    here, there = simulated(), There(simulated())
    requests = [asking(f"{number}", 3, 100) for number in range(2)]
    cost = asyncio.run(in_turns(here, there, requests, turns=3, steps=5))
    assert min(cost.here.wall_s, cost.there.wall_s, cost.there.child_s) > 0
    assert (here.running, there.engine.running, there.rested) == (0, 0, True)


def test_steps_that_were_alike_are_drawn_as_one():
    assert outline([(1.0, 8), (2.0, 8), (3.0, 7), (4.0, 8)]) == ([0.0, 2.0, 3.0, 4.0], [8, 7, 8])


def test_page_and_pictures_are_written_side_by_side(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the extra `simulate`")
    steps = [(0.1, 8), (0.2, 3)]
    section, seen = Section("A part", "What ran."), Occupancy("a model", steps, steps)
    written = write(result([section], seen), tmp_path / "run", command="c", machine="w")
    assert [path.name for path in written] == ["run.md", "run.json", "run.svg", "run-dark.svg"]
    assert all(f'"{path.name}"' in written[0].read_text() for path in written[2:])
    assert "static batches: 2 steps, 0.2 s" in written[2].read_text()
    bare = write(result([section], None), tmp_path / "bare", command="c", machine="w")
    assert [path.name for path in bare] == ["bare.md", "bare.json"]
