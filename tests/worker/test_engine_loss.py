"""What the engine loop does about an engine that dies, stands still, runs out of memory or shrinks; in virtual time."""

from __future__ import annotations

import asyncio
import math

import pytest

from services.contracts.generate import Done
from services.core.outcome import Outcome
from services.runtime.errors import Refused
from services.worker.engine import Step
from services.worker.engine_executor import EngineDied, EngineUnusable, LocalExecutor
from services.worker.engines.faults import FaultPlan
from services.worker.stream import Dropped
from tests.worker.rig import STALL_S, CountingEngine, asking, in_virtual_time, now, read, turning, wasted


class FrailHost(LocalExecutor):
    """Loses its engine when told to, and needs `restarts_fail` attempts to have one again."""

    def __init__(self, slots: int = 2) -> None:
        super().__init__(CountingEngine(slots))
        self.dies = self.hangs = False
        self.loses = 0
        self.restarts_fail = 0
        self.restarted_at: list[float] = []

    async def step(self) -> Step:
        if self.dies:
            raise EngineDied("the engine process was killed by SIGKILL")
        if self.hangs:
            await asyncio.sleep(math.inf)
        step = await super().step()
        for _ in range(self.loses):
            sequence = next(reversed(self.engine._answers))
            self.engine.drop(sequence)
            step.lost.append((sequence, "out of memory"))
        self.loses = 0
        return step

    async def restart(self) -> None:
        self.restarted_at.append(now())
        if len(self.restarted_at) <= self.restarts_fail:
            raise EngineUnusable("no such device")
        self.dies = self.hangs = False


@in_virtual_time
async def test_an_engine_that_dies_fails_those_that_ran_and_hands_back_those_in_line():
    executor = FrailHost(slots=1)
    async with turning(executor=executor, slots=1) as loop:
        ran, queued = await loop.submit(asking("a", 100)), await loop.submit(asking("b"))
        await asyncio.sleep(0.05)
        executor.dies = True
        ending = (await read(ran))[1]
        assert (ending.outcome, ending.code) == (Outcome.INTERNAL, "engine_died")
        assert "killed by SIGKILL" in ending.message
        assert (await read(queued))[1].outcome is Outcome.NO_CAPACITY
        await asyncio.sleep(0)
        assert loop.alive
        assert isinstance((await read(await loop.submit(asking("a", 2))))[1], Done)
        assert loop._metrics.engine_restarts._value.get() == 1


@in_virtual_time
async def test_an_engine_that_stands_still_is_replaced_after_the_stall_and_no_sooner():
    executor = FrailHost()
    async with turning(executor=executor) as loop:
        executor.hangs = True
        began = now()
        ending = (await read(await loop.submit(asking("a", 100))))[1]
        assert (ending.code, now() - began) == ("engine_died", pytest.approx(STALL_S))
        assert "has not finished a step for 5 s" in ending.message


@in_virtual_time
async def test_after_a_simulated_step_without_an_end_the_next_one_has_one():
    engine = CountingEngine(slots=1)
    engine.faults.replace(FaultPlan(hang_after_tokens=1))
    executor = LocalExecutor(engine)
    first, second = await executor.prepare(asking("a", 100)), await executor.prepare(asking("b", 100))
    executor.admit(first)
    await executor.step()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(STALL_S):
            await executor.step()
    engine.faults.replace(FaultPlan())
    executor.drop(first)
    await executor.restart()
    executor.admit(second)
    async with asyncio.timeout(STALL_S):
        assert (await executor.step()).tokens


@in_virtual_time
async def test_a_deadline_frees_its_place_though_the_engine_stands_still():
    executor = FrailHost(slots=1)
    async with turning(executor=executor, slots=1) as loop:
        executor.hangs = True
        _, ending = await read(await loop.submit(asking("a", 100, deadline_s=0.5)))
        assert (ending.outcome, now()) == (Outcome.DEADLINE_EXCEEDED, pytest.approx(0.5))
        assert (loop.running, loop.free_tokens) == (0, executor.kv_tokens)


@in_virtual_time
async def test_while_there_is_no_engine_newcomers_are_sent_elsewhere_and_it_is_made_again_ever_less_often():
    executor = FrailHost()
    executor.restarts_fail = 7
    async with turning(executor=executor) as loop:
        job = await loop.submit(asking("a"))
        executor.dies = True
        await read(job)
        await asyncio.sleep(0.5)
        assert not loop.alive
        with pytest.raises(Refused) as refusal:
            await loop.submit(asking("b"))
        assert refusal.value.outcome is Outcome.NO_CAPACITY
        await asyncio.sleep(200)
        assert loop.alive
        gaps = [
            later - earlier for earlier, later in zip(executor.restarted_at, executor.restarted_at[1:], strict=False)
        ]
        for gap, least in zip(gaps, (1, 2, 4, 8, 16, 30, 30), strict=True):
            assert least <= gap <= least * 1.2 + 0.01


@in_virtual_time
async def test_a_sequence_lost_to_memory_may_go_elsewhere_and_the_others_go_on():
    executor = FrailHost()
    async with turning(executor=executor) as loop:
        spared, hit = await loop.submit(asking("a", 5)), await loop.submit(asking("b", 100))
        await asyncio.sleep(0.05)
        executor.loses = 1
        ending = (await read(hit))[1]
        assert (ending.outcome, ending.code) == (Outcome.NO_CAPACITY, "no_capacity")
        assert isinstance((await read(spared))[1], Done)
        assert wasted(loop, "lost") > 0


@in_virtual_time
async def test_an_engine_that_shrinks_runs_fewer_at_once_from_then_on():
    executor = FrailHost(slots=4)
    async with turning(executor=executor, slots=4, queue_size=8) as loop:
        jobs = [await loop.submit(asking(str(number), 40)) for number in range(4)]
        await asyncio.sleep(0.1)
        executor.engine.slots, executor.loses = 2, 2
        endings = await asyncio.gather(*[read(job) for job in jobs])
        assert sorted(isinstance(ending, Done) for _, ending in endings) == [False, False, True, True]
        jobs = [await loop.submit(asking(str(number), 40)) for number in range(4)]
        await asyncio.sleep(0.1)
        assert (loop.running, loop.waiting) == (2, 2)
        assert all(isinstance(ending, Done) for _, ending in await asyncio.gather(*[read(job) for job in jobs]))


@in_virtual_time
async def test_who_cannot_fit_into_memory_that_has_shrunk_is_handed_back():
    executor = FrailHost(slots=1)
    async with turning(executor=executor, slots=1) as loop:
        ran, large = await loop.submit(asking("a", 20)), await loop.submit(asking("b", 1500))
        await asyncio.sleep(0.05)
        executor.engine.kv_tokens, executor.loses = 1000, 1
        await read(ran)
        ending = (await read(large))[1]
        assert isinstance(ending, Dropped)
        assert ending.outcome is Outcome.NO_CAPACITY


@in_virtual_time
async def test_memory_not_slots_may_be_what_a_request_waits_for():
    executor = FrailHost(slots=4)
    async with turning(executor=executor, slots=4, queue_size=8) as loop:
        budget = executor.kv_tokens
        large = [await loop.submit(asking(str(number), budget // 2 - 2)) for number in range(3)]
        await asyncio.sleep(0.05)
        assert (loop.running, loop.waiting, loop.free_tokens) == (2, 1, 0)
        loop.cancel("0")
        await asyncio.sleep(0.05)
        assert (loop.running, loop.waiting) == (2, 0)
        for job in large:
            loop.abandon(job)
        assert loop.free_tokens == budget


@in_virtual_time
async def test_a_prompt_that_cannot_be_read_in_time_gets_no_slot():
    async with turning(slots=1) as loop:
        words = " ".join(["one"] * 300)  # 300 tokens at 1 ms each
        request = asking("a", 5, deadline_s=0.2)
        doomed = await loop.submit(type(request)(**{**_fields(request), "prompt": words}))
        ending = (await read(doomed))[1]
        assert (ending.outcome, now()) == (Outcome.DEADLINE_EXPIRED, pytest.approx(0))
        assert "300 tokens of the prompt cannot be processed" in ending.message
        assert loop.executor.engine.computed == {}


def _fields(request: object) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__struct_fields__}
