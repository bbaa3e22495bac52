"""Requests and the slots that are lent, in virtual time: who gets one, and that every end gives it back once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from services.contracts.generate import Done, GenerateRequest
from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused, WeirError
from services.worker.batching import EngineLoop
from services.worker.engine import Sequence, Step
from services.worker.engine_executor import EngineDied, LocalExecutor
from services.worker.job import Job
from services.worker.lending import Loan
from tests.worker.leaserig import AskingRouter, counted, may_of
from tests.worker.rig import CountingEngine, asking, in_virtual_time, now, read, turning


class SlowExecutor(LocalExecutor):
    """Tokenizes for 50 ms, and fails as it is told to."""

    def __init__(self, slots: int = 2) -> None:
        super().__init__(CountingEngine(slots))
        self.fault: Exception | None = None
        self.dies = False
        self.restarts = asyncio.Event()
        self.restarts.set()

    async def prepare(self, request: GenerateRequest) -> Sequence:
        await asyncio.sleep(0.05)
        if self.fault is not None:
            raise self.fault
        return await super().prepare(request)

    async def step(self) -> Step:
        if self.dies:
            self.dies = False
            raise EngineDied("killed")
        return await super().step()

    async def restart(self) -> None:
        await self.restarts.wait()


@in_virtual_time
async def test_a_request_within_its_lease_runs_and_its_end_leaves_the_slot_where_it_is() -> None:
    async with turning(slots=2) as loop:
        router = AskingRouter()
        router.asks(loop.lending, wants=1)
        job = await router.starts(loop, "a", 2)
        assert counted(loop) == (1, 1)
        _, ending = await read(job)
        assert isinstance(ending, Done)
        assert job.loan.grant is not None
        assert (job.loan.grant.may, job.loan.grant.slots, counted(loop)) == (1, 2, (0, 0))


@in_virtual_time
async def test_the_end_of_a_request_gives_its_slot_to_the_router_that_is_behind_before_the_answer_is_read() -> None:
    async with turning(slots=1) as loop:
        ahead, behind = AskingRouter("a"), AskingRouter("b")
        stream = behind.opens(loop.lending)
        ahead.asks(loop.lending, wants=1)
        job = await ahead.starts(loop, "a", 10)
        ends_at = 0.023 + 9 * 0.021
        await asyncio.sleep(0.15)
        ahead.asks(loop.lending, wants=3, level=50.0)
        assert behind.asks(loop.lending, wants=1, level=10.0) == 0
        assert await stream.is_offered()
        assert (now(), loop.running) == (pytest.approx(ends_at), 0)
        assert stream.take().may == 1
        assert job.loan.grant is not None
        assert job.loan.grant.may == 0


@in_virtual_time
async def test_a_request_that_finds_no_slot_for_its_router_is_refused_as_by_any_full_worker() -> None:
    async with turning(slots=2, queue_size=4) as loop:
        holder, other = AskingRouter("a"), AskingRouter("b")
        holder.asks(loop.lending, wants=1)
        await holder.starts(loop, "a", 100, wants=1)
        with pytest.raises(Refused, match="lent to a router") as refusal:
            await other.starts(loop, "b")
        details = refusal.value.details
        assert (refusal.value.outcome, refusal.value.status, details.reason) == (Outcome.YIELD, 429, "no_lease")
        assert (details.predicted_wait_ms, details.retry_hint_ms) == (0, 50)
        assert counted(loop) == (1, 1)


@in_virtual_time
async def test_a_request_beyond_its_lease_gets_a_slot_that_nobody_was_promised() -> None:
    async with turning(slots=2) as loop:
        await AskingRouter("b").starts(loop, "b")
        assert counted(loop) == (1, 1)


@in_virtual_time
async def test_without_leases_requests_without_an_ask_are_bounded_by_the_queue_only() -> None:
    async with turning(slots=2, queue_size=2) as loop:
        for id in "abcd":
            await loop.submit(asking(id))
        assert counted(loop) == (4, 4)
        with pytest.raises(Refused) as refusal:
            await loop.submit(asking("e"))
        assert refusal.value.details.reason == "worker_queue_full"
        assert counted(loop) == (4, 4)


@in_virtual_time
async def test_while_a_router_has_a_lease_a_request_without_an_ask_gets_only_a_slot_that_is_neither_used_nor_lent() -> (
    None
):
    async with turning(slots=2) as loop:
        AskingRouter().asks(loop.lending, wants=1)
        job = await loop.submit(asking("plain", 2))
        with pytest.raises(Refused) as refusal:
            await loop.submit(asking("one more"))
        assert refusal.value.details.reason == "no_lease"
        assert isinstance((await read(job))[1], Done)
        assert job.loan.grant is None
        assert counted(loop) == (0, 0)


@in_virtual_time
async def test_the_end_of_a_request_without_an_ask_lends_its_slot() -> None:
    async with turning(slots=1) as loop:
        router = AskingRouter()
        stream = router.opens(loop.lending)
        job = await loop.submit(asking("plain", 2))
        assert router.asks(loop.lending, wants=1) == 0
        await read(job)
        assert may_of(stream) == 1


# ---- a request's own grant


@in_virtual_time
async def test_the_grant_of_an_ask_that_came_with_a_request_is_pushed_only_if_it_changes_what_the_router_may_use() -> (
    None
):
    async with turning(slots=4) as loop:
        router = AskingRouter()
        stream = router.opens(loop.lending)
        assert router.asks(loop.lending, wants=1) == 1
        await router.starts(loop, "a", 100)
        assert may_of(stream) is None
        await router.starts(loop, "b", 100, wants=1)
        assert may_of(stream) == 2


@in_virtual_time
async def test_the_grant_of_an_ask_that_came_with_a_request_is_not_for_another_process_of_its_name() -> None:
    async with turning(slots=4) as loop:
        older, newer = AskingRouter("a", 1), AskingRouter("a", 2)
        newer.asks(loop.lending, wants=1)
        stream = newer.opens(loop.lending)
        job = await older.starts(loop, "old", 2)
        await read(job)
        assert may_of(stream) is None
        assert job.loan.grant is None
        assert counted(loop) == (0, 0)


@in_virtual_time
async def test_the_slot_of_a_replaced_process_goes_to_its_successor_by_its_stream_and_not_by_the_old_answer() -> None:
    async with turning(slots=1) as loop:
        older, newer = AskingRouter("a", 1), AskingRouter("a", 2)
        older.asks(loop.lending, wants=1)
        job = await older.starts(loop, "old", 2)
        stream = newer.opens(loop.lending)
        assert newer.asks(loop.lending, wants=1) == 0
        await read(job)
        assert job.loan.grant is None
        assert may_of(stream) == 1


# ---- requests that end before they wait or run


@in_virtual_time
async def test_a_request_holds_its_slot_while_its_prompt_is_tokenized() -> None:
    async with turning(slots=2, executor=SlowExecutor()) as loop:
        router = AskingRouter()
        router.asks(loop.lending, wants=1)
        starting = asyncio.ensure_future(router.starts(loop, "a", 2))
        await asyncio.sleep(0.01)
        assert counted(loop) == (1, 1)
        assert loop.lending.book.may("a") == 1
        await read(await starting)
        assert counted(loop) == (0, 0)


@pytest.mark.parametrize("fault", [BadInput("too long", "prompt"), EngineDied("killed"), ValueError("a bug")])
def test_a_request_that_cannot_be_prepared_gives_its_slot_back_and_its_grant_is_pushed(fault: Exception) -> None:
    @in_virtual_time
    async def scenario() -> None:
        executor = SlowExecutor()
        executor.fault = fault
        async with turning(slots=2, executor=executor) as loop:
            router = AskingRouter()
            stream = router.opens(loop.lending)
            router.asks(loop.lending, wants=1)
            with pytest.raises((WeirError, ValueError)):
                await router.starts(loop, "a")
            assert counted(loop) == (0, 0)
            assert may_of(stream) == 1

    scenario()


@in_virtual_time
async def test_a_request_that_is_cancelled_while_its_prompt_is_tokenized_gives_its_slot_back() -> None:
    async with turning(slots=2, executor=SlowExecutor()) as loop:
        starting = asyncio.ensure_future(AskingRouter().starts(loop, "a"))
        await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.wait([starting])
        assert counted(loop) == (0, 0)


@in_virtual_time
async def test_a_drain_that_begins_while_a_prompt_is_tokenized_gives_the_slot_back() -> None:
    async with turning(slots=2, executor=SlowExecutor()) as loop:
        router = AskingRouter()
        stream = router.opens(loop.lending)
        router.asks(loop.lending, wants=1)
        starting = asyncio.ensure_future(router.starts(loop, "a"))
        await asyncio.sleep(0.01)
        loop.drain(grace_s=1)
        assert not stream.is_over
        with pytest.raises(Refused) as refusal:
            await starting
        assert refusal.value.outcome is Outcome.DRAINING
        assert counted(loop) == (0, 0)
        assert stream.is_over


@in_virtual_time
async def test_an_id_that_is_here_already_holds_no_second_slot() -> None:
    async with turning(slots=2) as loop:
        router = AskingRouter()
        await router.starts(loop, "a")
        with pytest.raises(BadInput):
            await router.starts(loop, "a")
        assert counted(loop) == (1, 1)


# ---- requests that end otherwise


async def by_finishing(loop: EngineLoop, job: Job) -> None:
    await read(job)


async def by_a_cancel(loop: EngineLoop, job: Job) -> None:
    assert loop.cancel(job.id)


async def by_a_client_that_is_gone(loop: EngineLoop, job: Job) -> None:
    await asyncio.sleep(0.03)
    loop.abandon(job)
    loop.abandon(job)


async def by_its_deadline(loop: EngineLoop, job: Job) -> None:
    await asyncio.sleep(0.6)


async def by_a_failed_step(loop: EngineLoop, job: Job) -> None:
    loop.executor.engine.fail_next = "step"
    await read(job)


async def by_a_failed_admission(loop: EngineLoop, job: Job) -> None:
    loop.executor.engine.fail_next = "admit"
    await read(job)


async def by_an_engine_that_dies(loop: EngineLoop, job: Job) -> None:
    loop.executor.dies = True
    await read(job)


async def by_a_drain(loop: EngineLoop, job: Job) -> None:
    loop.drain(grace_s=0.01)
    await read(job)


async def by_a_loop_that_stops(loop: EngineLoop, job: Job) -> None:
    loop._deliver = None
    await read(job)


ENDS: list[tuple[Callable[[EngineLoop, Job], Awaitable[None]], int, int]] = [
    (by_finishing, 5, 1),
    (by_a_cancel, 100, 1),
    (by_a_client_that_is_gone, 100, 1),
    (by_its_deadline, 100, 1),
    (by_a_failed_step, 100, 1),
    (by_a_failed_admission, 100, 1),
    (by_an_engine_that_dies, 100, 0),
    (by_a_drain, 100, 0),
    (by_a_loop_that_stops, 100, 0),
]
"""How a request of so many tokens ends, and what its router may use then."""


@pytest.mark.parametrize(("end", "tokens", "may"), ENDS, ids=[end.__name__ for end, _, _ in ENDS])
def test_every_end_gives_the_slot_back_once_and_makes_a_grant(
    end: Callable[[EngineLoop, Job], Awaitable[None]], tokens: int, may: int
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with turning(slots=1, executor=SlowExecutor(1)) as loop:
            router = AskingRouter()
            router.asks(loop.lending, wants=1)
            job = await router.starts(loop, "a", tokens, deadline_s=0.5)
            await end(loop, job)
            assert job.ticket.outcome is not None
            assert counted(loop) == (0, 0)
            assert job.loan.grant is not None
            assert job.loan.grant.may == may

    scenario()


@in_virtual_time
async def test_the_slot_is_given_back_after_the_engine_has_it_back_and_before_the_answer_ends() -> None:
    async with turning(slots=1) as loop:
        router = AskingRouter()
        router.asks(loop.lending, wants=1)
        seen: list[tuple[int, int]] = []
        give_back = loop.lending.give_back

        def noted(loan: Loan) -> None:
            seen.append((loop.running, loop.executor.engine.running))
            assert job.stream.ending is None
            give_back(loan)

        loop.lending.give_back = noted  # type: ignore[method-assign]
        job = await router.starts(loop, "a", 3)
        await read(job)
        assert seen == [(0, 0)]


# ---- resizes


@in_virtual_time
async def test_the_book_has_the_slots_of_the_engine_and_follows_it() -> None:
    async with turning(slots=3) as loop:
        router = AskingRouter()
        stream = router.opens(loop.lending)
        assert loop.lending.book.slots == 3
        router.asks(loop.lending, wants=1)
        job = await router.starts(loop, "a", 3)
        loop.executor.engine.slots = 1
        await read(job)
        assert loop.lending.book.slots == 1
        assert may_of(stream) is None, "nothing is recalled: one slot is left, and it has one"


@in_virtual_time
async def test_a_worker_that_drains_recalls_what_is_idle_and_ends_the_streams_with_the_last_request() -> None:
    async with turning(slots=2) as loop:
        router, idle = AskingRouter("a"), AskingRouter("b")
        streams = [router.opens(loop.lending), idle.opens(loop.lending)]
        router.asks(loop.lending, wants=1)
        idle.asks(loop.lending, wants=1)
        job = await router.starts(loop, "a", 5)
        await asyncio.sleep(0.03)
        loop.drain(grace_s=5)
        recalled = streams[1].take()
        assert (recalled.may, recalled.recall, recalled.slots) == (1, True, 0)
        with pytest.raises(Refused, match="lends nothing more") as refusal:
            AskingRouter("c").opens(loop.lending)
        assert refusal.value.outcome is Outcome.DRAINING
        assert not any(stream.is_over for stream in streams)
        await read(job)
        assert all(stream.is_over for stream in streams)
        assert job.loan.grant is not None
        assert job.loan.grant.may == 0


@in_virtual_time
async def test_an_idle_worker_that_drains_ends_the_streams_at_once() -> None:
    async with turning() as loop:
        stream = AskingRouter().opens(loop.lending)
        loop.drain(grace_s=5)
        assert stream.is_over


@in_virtual_time
async def test_while_its_engine_is_replaced_a_worker_lends_nothing_and_afterwards_its_slots() -> None:
    executor = SlowExecutor()
    executor.restarts.clear()
    async with turning(slots=2, executor=executor) as loop:
        router = AskingRouter()
        stream = router.opens(loop.lending)
        router.asks(loop.lending, wants=1)
        job = await router.starts(loop, "a", 100)
        executor.dies = True
        await read(job)
        assert (loop.replacing, loop.lending.book.slots) == (True, 0)
        assert router.asks(loop.lending, wants=1) == 0
        with pytest.raises(Refused) as refusal:
            await router.starts(loop, "b")
        assert refusal.value.outcome is Outcome.NO_CAPACITY
        assert counted(loop) == (0, 0)
        router.asks(loop.lending, wants=1)
        executor.restarts.set()
        assert await stream.is_offered()
        assert (stream.take().may, loop.lending.book.slots) == (1, 2)


@in_virtual_time
async def test_an_engine_that_is_ready_again_while_the_worker_drains_lends_nothing() -> None:
    executor = SlowExecutor()
    executor.restarts.clear()
    async with turning(slots=2, executor=executor) as loop:
        executor.dies = True
        await read(await loop.submit(asking("a")))
        loop.drain(grace_s=1)
        executor.restarts.set()
        await asyncio.sleep(0.5)
        assert (loop.alive, loop.lending.book.slots) == (True, 0)
        assert math.isinf(loop.lending.book.wakes_at())
