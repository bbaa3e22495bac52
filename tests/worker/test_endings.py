"""How a request leaves the engine loop: cancelled, late, cut by a drain, or by a fault; in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from services.contracts.generate import Done
from services.core.outcome import Outcome
from services.runtime.errors import Refused
from tests.worker.rig import asking, in_virtual_time, now, read, turning, wasted


@in_virtual_time
async def test_a_cancelled_sequence_frees_its_slot_within_the_step_and_no_token_is_computed_for_it():
    async with turning(slots=1) as loop:
        gone, next_one = await loop.submit(asking("a", 100)), await loop.submit(asking("b", 1))
        await asyncio.sleep(0.050)
        computed = loop.executor.engine.computed["a"]
        assert loop.cancel("a")
        assert loop.running == 0
        times, _ = await read(next_one)
        assert times == pytest.approx([0.065 + 0.023])  # the step that ran, then its own
        assert loop.executor.engine.computed["a"] == computed
        assert (await read(gone))[1].outcome is Outcome.CLIENT_GONE
        assert wasted(loop, "client_gone") == pytest.approx(0.050)


@in_virtual_time
async def test_a_cancelled_id_can_be_used_again_at_once():
    async with turning(slots=1) as loop:
        await loop.submit(asking("a", 100))
        await asyncio.sleep(0.030)
        loop.cancel("a")
        again = await loop.submit(asking("a", 2))
        times, ending = await read(again)
        assert len(times) == 2
        assert isinstance(ending, Done)
        assert not loop.cancel("a")


@in_virtual_time
async def test_a_cancel_that_meets_the_last_step_is_neither_lost_nor_doubled():
    async with turning() as loop:
        job = await loop.submit(asking("a", 1))
        await asyncio.sleep(0.010)  # its only token is being computed
        loop.abandon(job)
        loop.abandon(job)
        times, ending = await read(job)
        assert (times, ending.outcome) == ([], Outcome.CLIENT_GONE)
        assert loop.executor.engine.running == loop.running == 0
        await asyncio.sleep(1)
        assert job.ticket.outcome is Outcome.CLIENT_GONE
        assert loop._metrics.requests[Outcome.SERVED]._value.get() == 0


@in_virtual_time
async def test_cancels_at_random_points_leave_nothing_behind():
    chance = random.Random(7)
    async with turning(slots=4, queue_size=8) as loop:
        for number in range(200):
            job = await loop.submit(asking(f"r{number}", chance.randint(1, 20)))
            await asyncio.sleep(chance.uniform(0, 0.3))
            computed = job.sequence.completion_tokens
            ended = job.ticket.outcome is not None
            assert loop.cancel(job.id) is not ended
            await asyncio.sleep(0.05)
            assert job.sequence.completion_tokens == computed
        assert (loop.running, loop.waiting, loop.executor.engine.running, loop.executor.engine.kv_usage) == (0, 0, 0, 0)
        ended_as = {outcome.value: child._value.get() for outcome, child in loop._metrics.requests.items()}
        assert ended_as["served"] + ended_as["client_gone"] == 200


@in_virtual_time
async def test_a_deadline_in_the_line_ends_the_wait_at_once():
    async with turning(slots=1) as loop:
        await loop.submit(asking("a", 100))
        await asyncio.sleep(0)  # or the tighter deadline would go first
        late = await loop.submit(asking("b", 1, deadline_s=0.1))
        _, ending = await read(late)
        assert ending.outcome is Outcome.DEADLINE_EXPIRED
        assert now() == pytest.approx(0.1)
        assert "b" not in loop.executor.engine.computed


@in_virtual_time
async def test_a_deadline_during_a_step_ends_the_answer_at_once_and_computes_no_more():
    async with turning(slots=1) as loop:
        times, ending = await read(await loop.submit(asking("a", 100, deadline_s=0.05)))
        assert len(times) == 2
        assert ending.outcome is Outcome.DEADLINE_EXCEEDED
        assert now() == pytest.approx(0.05)
        await asyncio.sleep(1)
        assert loop.executor.engine.computed["a"] == 3  # the one under way was thrown away
        assert wasted(loop, "deadline_exceeded") == pytest.approx(0.05)


@in_virtual_time
async def test_a_token_due_exactly_at_the_deadline_is_not_sent():
    async with turning() as loop:
        times, ending = await read(await loop.submit(asking("a", 1, deadline_s=0.023)))
    assert (times, ending.outcome) == ([], Outcome.DEADLINE_EXCEEDED)


@in_virtual_time
async def test_draining_refuses_the_line_at_once_and_finishes_what_runs():
    async with turning(slots=1) as loop:
        running, queued = await loop.submit(asking("a", 10)), await loop.submit(asking("b", 10))
        await asyncio.sleep(0.05)
        loop.drain(grace_s=5)
        assert queued.stream.ending.outcome is Outcome.DRAINING
        with pytest.raises(Refused) as refusal:
            await loop.submit(asking("c"))
        assert refusal.value.outcome is Outcome.DRAINING
        times, ending = await read(running)
        assert len(times) == 10
        assert isinstance(ending, Done)


@in_virtual_time
async def test_draining_ends_what_outlasts_the_grace():
    async with turning(slots=1) as loop:
        running = await loop.submit(asking("a", 1000))
        await asyncio.sleep(0.05)
        loop.drain(grace_s=1)
        _, ending = await read(running)
        assert (ending.outcome, now()) == (Outcome.DRAINING, pytest.approx(1.05))


@in_virtual_time
async def test_a_failed_step_ends_those_that_ran_and_nobody_else():
    async with turning(slots=1) as loop:
        hit, spared = await loop.submit(asking("a", 10)), await loop.submit(asking("b", 2))
        await asyncio.sleep(0.03)
        loop.executor.engine.fail_next = "step"
        assert (await read(hit))[1].outcome is Outcome.INTERNAL
        assert isinstance((await read(spared))[1], Done)
        assert loop.alive


@in_virtual_time
async def test_a_failed_admission_ends_that_request_and_nobody_else():
    async with turning(slots=2) as loop:
        loop.executor.engine.fail_next = "admit"
        hit, spared = await loop.submit(asking("a", 2)), await loop.submit(asking("b", 2))
        assert (await read(hit))[1].outcome is Outcome.INTERNAL
        assert isinstance((await read(spared))[1], Done)


@in_virtual_time
async def test_a_loop_that_dies_leaves_nobody_waiting_and_says_it_has_no_capacity():
    async with turning(slots=1) as loop:
        loop._deliver = None  # any bug in the loop itself
        job = await loop.submit(asking("a"))
        assert (await read(job))[1].outcome is Outcome.INTERNAL
        assert not loop.alive
        with pytest.raises(Refused) as refusal:
            await loop.submit(asking("b"))
        assert refusal.value.outcome is Outcome.NO_CAPACITY
