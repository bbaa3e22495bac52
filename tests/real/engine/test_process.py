"""An engine behind a process does what one in front does, and its own end is the worst that it can do."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from services.runtime.errors import BadInput, TooLarge
from services.runtime.serve import FineClockLoop
from services.worker import process as process_module
from services.worker.engine_executor import EngineDied, EngineUnusable
from services.worker.engine_wire import MAX_FRAME_BYTES, Simulated
from services.worker.process import EngineFault, EngineProcess
from tests.real.engine.odd_child import SECRET
from tests.real.engine.process_rig import ODD, admitted, asking, is_buried, ledger, odd, odd_host, run, serves, until

LOOPS = [asyncio.new_event_loop, FineClockLoop]


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_an_answer_comes_out_whole_and_nothing_is_left_behind(loop_factory, tmp_path):
    async def scenario():
        executor = odd_host(tmp_path)
        await executor.start()
        pid = executor.pid
        assert await serves(executor)
        await executor.stop()
        await executor.stop()  # once more changes nothing
        assert is_buried(pid)
        assert executor.pid is None
        assert ledger(tmp_path)[-1] == "closed"
        with pytest.raises(EngineDied, match="there is no engine"):
            await executor.prepare(asking("late"))

    run(scenario, loop_factory)


def test_facts_are_those_asked_for_until_the_engine_tells_its_own(tmp_path):
    async def scenario():
        executor = EngineProcess(Simulated(slots=3, kv_tokens=1000), start_within_s=60)
        facts = [
            executor.name,
            executor.model,
            executor.slots,
            executor.kv_tokens,
            executor.context_tokens,
            executor.kv_usage,
        ]
        assert facts == ["simulated", "weir-sim", 3, 1000, 32_768, 0.0]
        assert executor.expected.step_ms == 0.0
        await executor.start()
        assert executor.context_tokens == 1000
        assert executor.expected.step_ms == 21.5
        assert executor.description.startswith("<SimulatedEngine 0/3 slots")
        await executor.stop()

    run(scenario)


def test_a_bad_request_is_refused_in_the_engines_own_words(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            with pytest.raises(BadInput) as raised:
                await executor.prepare(asking("reject"))
            bad = raised.value
            assert (bad.message, bad.param, bad.status, bad.code) == (
                "too much of it", "messages", 413, "request_too_large",
            )  # fmt: skip
            with pytest.raises(TooLarge):
                await executor.prepare(asking("huge", prompt="x" * MAX_FRAME_BYTES))
            assert await serves(executor)

    run(scenario)


def test_an_engine_that_raises_fails_those_that_run_and_serves_the_next(tmp_path, capfd):
    async def scenario():
        async with odd(tmp_path) as executor:
            with pytest.raises(EngineFault, match="ValueError: no template"):
                await executor.prepare(asking("raise-in-prepare", prompt=SECRET))
            beside, raiser = (
                await admitted(executor, "beside"),
                await admitted(executor, "raise-in-step", prompt=SECRET),
            )
            with pytest.raises(EngineFault, match="ValueError: NaN in the logits"):
                await executor.step()
            pid = executor.pid
            executor.drop(beside)
            executor.drop(raiser)
            assert await serves(executor)
            assert executor.pid == pid

    run(scenario)
    told = capfd.readouterr().err
    assert "the engine failed in a step: ValueError" in told
    assert "odd_child.py" in told  # the traceback
    assert SECRET not in told


def test_one_that_the_engine_will_not_admit_is_lost_and_the_others_go_on(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            refused = await admitted(executor, "refuse-admit")
            step = await executor.step()
            assert (step.batch_size, step.lost) == (0, [(refused, "RuntimeError: no room after all")])
            refused, beside = await admitted(executor, "refuse-admit"), await admitted(executor, "beside")
            step = await executor.step()
            assert step.lost == [(refused, "RuntimeError: no room after all")]
            assert [owner for owner, _ in step.tokens] == [beside]
            assert executor.running == 1

    run(scenario)


def test_an_engine_may_lose_a_sequence_and_shrink(tmp_path):
    async def scenario():
        async with odd(tmp_path, slots=4) as executor:
            lost, shrinks = await admitted(executor, "lose"), await admitted(executor, "shrink")
            step = await executor.step()
            assert step.lost == [(lost, "out of memory")]
            assert (executor.slots, executor.kv_tokens, executor.running) == (1, 500, 1)
            newcomer = await executor.prepare(asking("newcomer"))
            with pytest.raises(RuntimeError, match="without a free slot"):
                executor.admit(newcomer)
            executor.drop(shrinks)
            executor.admit(newcomer)
            step = await executor.step()
            assert [owner for owner, _ in step.tokens] == [newcomer]

    run(scenario)


def test_a_prompt_is_prepared_while_a_step_runs(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, "hold-in-step")
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            assert (await executor.prepare(asking("beside"))).prompt_tokens == 3
            with pytest.raises(BadInput):
                await executor.prepare(asking("reject"))
            assert not step.done()
            (tmp_path / "open").touch()
            assert (await step).batch_size == 1

    run(scenario)


def test_a_step_runs_while_a_prompt_is_prepared(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, "runs")
            prepared = asyncio.create_task(executor.prepare(asking("hold-in-prepare")))
            await until((tmp_path / "held").exists)
            assert len((await executor.step()).tokens) == 1
            assert not prepared.done()
            (tmp_path / "open").touch()
            executor.admit(await prepared)
            assert (await executor.step()).batch_size == 2

    run(scenario)


def test_a_slot_is_free_at_once_and_the_running_step_yields_nothing_for_one_that_left(tmp_path):
    async def scenario():
        async with odd(tmp_path, slots=1) as executor:
            leaver = await admitted(executor, "hold-in-step", tokens=100)
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            executor.drop(leaver)
            next_one = await admitted(executor, "next")  # the only slot, while the step still runs
            (tmp_path / "open").touch()
            assert (await step).tokens == []
            assert leaver.completion_tokens == 1  # it was computed, and it counts
            step = await executor.step()
            assert [owner for owner, _ in step.tokens] == [next_one]
            assert ledger(tmp_path) == ["token hold-in-step", "drop hold-in-step", "token next"]

    run(scenario)


def test_one_that_leaves_during_its_last_step_is_neither_lost_nor_doubled(tmp_path):
    async def scenario():
        async with odd(tmp_path, slots=1) as executor:
            leaver = await admitted(executor, "hold-in-step", tokens=1)
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            executor.drop(leaver)
            (tmp_path / "open").touch()
            taken = await step
            assert (taken.tokens, taken.finished) == ([], [])
            assert leaver.completion_tokens == 1
            (tmp_path / "open").unlink()
            assert await serves(executor, "next")  # its slot is free on both sides, the late drop is ignored
            assert ledger(tmp_path).count("token hold-in-step") == 1

    run(scenario)


def test_two_hundred_leave_at_random_points_and_nothing_is_computed_for_them_afterwards(tmp_path):
    chance = random.Random(7)
    left: dict[str, int] = {}  # by id, how many tokens it may have had
    lines: list[str] = []

    async def turn(executor, running):
        """One step, during which or before which somebody may leave."""
        leaves = [sequence for sequence in running if chance.random() < 0.3]
        early = [sequence for sequence in leaves if chance.random() < 0.5]
        for sequence in early:
            left[sequence.id] = sequence.completion_tokens
            executor.drop(sequence)
        if len(early) == len(running):
            return [], leaves
        step = asyncio.create_task(executor.step())
        await asyncio.sleep(0)  # the process has been asked
        for sequence in set(leaves) - set(early):
            left[sequence.id] = sequence.completion_tokens + 1
            executor.drop(sequence)
        taken = await step
        assert not {owner for owner, _ in taken.tokens} & set(leaves)
        return [sequence for sequence, _ in taken.finished], leaves

    async def scenario():
        async with odd(tmp_path, slots=4, prefill_chunk_tokens=3) as executor:
            running, count = set(), 0
            while len(left) < 200:
                while len(running) < 4:
                    count += 1
                    running.add(await admitted(executor, f"r{count}", chance.randrange(1, 20)))
                finished, leaves = await turn(executor, sorted(running, key=lambda each: each.id))
                running -= {*finished, *leaves}
            for sequence in running:
                executor.drop(sequence)
            assert executor.running == 0
            lines.extend(ledger(tmp_path))
            assert await serves(executor, next(iter(left)))  # the same id again

    run(scenario)
    dropped: set[str] = set()
    for verb, id in map(str.split, lines):
        assert verb == "drop" or id not in dropped, f"a token for {id} after its drop"
        dropped |= {id} if verb == "drop" else set()
    for id, most in left.items():
        assert lines.count(f"token {id}") <= most


def test_those_who_were_dropped_last_are_freed_when_nothing_runs(tmp_path):
    async def scenario():
        async with odd(tmp_path) as executor:
            last = await admitted(executor, "last")
            await executor.step()
            assert executor.kv_usage > 0
            executor.drop(last)
            executor.rest()
            await until(lambda: executor.kv_usage == 0)
            assert ledger(tmp_path)[-1] == "drop last"
            executor.rest()  # nothing is owed any more
            assert await serves(executor)

    run(scenario)


def test_the_process_keeps_no_sequence_that_is_never_admitted(tmp_path):
    async def alive(executor):
        with pytest.raises(BadInput) as raised:
            await executor.prepare(asking("how-many"))
        return int(raised.value.message)

    async def scenario():
        async with odd(tmp_path) as executor:
            assert await alive(executor) == 0
            waits = await executor.prepare(asking("waits"))
            assert await alive(executor) == 1
            executor.drop(waits)
            assert await alive(executor) == 0
            executor.drop(await admitted(executor, "admitted-and-dropped-before-any-step-knew"))
            assert await alive(executor) == 0
            cancelled = asyncio.create_task(executor.prepare(asking("hold-in-prepare")))
            await until((tmp_path / "held").exists)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            (tmp_path / "open").touch()
            assert await alive(executor) == 0
            runs = await admitted(executor, "raise-in-drop")
            await executor.step()
            executor.drop(runs)
            never_reached = await admitted(executor, "never-reached")
            with pytest.raises(EngineFault, match="freed twice"):
                await executor.step()
            executor.drop(never_reached)
            assert await serves(executor)
            assert await alive(executor) == 0

    run(scenario)


def test_signals_to_the_process_change_nothing(tmp_path, capfd):
    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, "hold-in-step")
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(executor.pid, number)
            (tmp_path / "open").touch()
            assert len((await step).tokens) == 1
            assert os.getsid(executor.pid) == executor.pid  # so Ctrl-C in a terminal does not even reach it

    run(scenario)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unusable", "no such model; set MODEL_ID"),
        ("broken", "the engine could not be created: ValueError: the weights are no weights"),
        ("missing", "the engine needs no_such_module, which is not installed"),
    ],
)
def test_an_engine_that_cannot_be_made_says_why(name, why, tmp_path):
    async def scenario():
        executor = odd_host(tmp_path / name)
        with pytest.raises(EngineUnusable, match=why):
            await executor.start()
        assert executor.pid is None
        await executor.stop()

    run(scenario)


def test_a_command_that_does_not_exist_is_an_engine_that_cannot_be_made(tmp_path):
    async def scenario():
        executor = EngineProcess(Simulated(), start_within_s=60, command=[str(tmp_path / "no-such-program")])
        with pytest.raises(EngineUnusable, match="cannot be started"):
            await executor.start()
        await executor.stop()

    run(scenario)


def test_an_engine_that_is_not_ready_in_time_is_given_up(tmp_path):
    async def scenario():
        folder = tmp_path / "held"
        folder.mkdir()
        executor = EngineProcess(Simulated(model=str(folder)), start_within_s=0.5, command=ODD)
        with pytest.raises(EngineUnusable, match=r"not ready within 0\.5 s"):
            await executor.start()
        assert executor.pid is None

    run(scenario)


def test_stopping_does_not_wait_for_a_step_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "STOP_WITHIN_S", 0.05)

    async def scenario():
        async with odd(tmp_path) as executor:
            await admitted(executor, "hold-in-step")
            step = asyncio.create_task(executor.step())
            await until((tmp_path / "held").exists)
            pid = executor.pid
            await executor.stop()
            assert is_buried(pid)
            with pytest.raises(EngineDied, match="stopped"):
                await step

    run(scenario)
