"""The engine loop in virtual time: cadence, slots, deadlines, bounds and leaving."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from services.contracts.generate import Done, GenerateRequest
from services.core.batcher import BatchFormer, Batching
from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused
from services.runtime.log import Log
from services.worker.batching import EngineLoop
from services.worker.engine import Step
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics
from services.worker.stream import Dropped
from tests.virtual_time import run

PROMPT = "one two"  # 2 tokens


class CountingEngine(SimulatedEngine):
    """A step is 20 ms, 1 ms a sequence, 1 ms a prompt token. Counts tokens by request, and fails when told to."""

    fail_next = ""

    def __init__(self, slots: int) -> None:
        super().__init__(
            model="m", slots=slots, kv_tokens=slots * 2048, latency=LatencyModel(20, 1, 1), chance=random.Random(1)
        )
        self.computed: dict[str, int] = {}

    def admit(self, sequence):
        if self.fail_next == "admit":
            self.fail_next = ""
            raise MemoryError("no memory")
        super().admit(sequence)

    def step(self) -> Step:
        if self.fail_next == "step":
            self.fail_next = ""
            raise ValueError("NaN in the logits")
        step = super().step()
        for sequence, _ in step.tokens:
            self.computed[sequence.id] = self.computed.get(sequence.id, 0) + 1
        return step


@asynccontextmanager
async def turning(
    *, slots: int = 2, queue_size: int = 2, batching: Batching = Batching.CONTINUOUS, buffer_tokens: int = 64
) -> AsyncIterator[EngineLoop]:
    former: BatchFormer[Job] = BatchFormer(batching, slots=slots, queue_size=queue_size, window_s=0.05)
    log = Log("worker", stream=io.BytesIO())
    loop = EngineLoop(
        CountingEngine(slots), former, metrics=WorkerMetrics(CollectorRegistry()), log=log,
        chance=random.Random(1), stream_buffer_tokens=buffer_tokens,
    )  # fmt: skip
    loop.start()
    try:
        yield loop
    finally:
        await loop.stop()
        log.close()


def asking(id: str, tokens: int = 10, *, deadline_s: float = 60.0, **fields: object) -> GenerateRequest:
    return GenerateRequest(
        id=id, tenant="t", deadline_ms=deadline_s * 1000, max_tokens=tokens, prompt=PROMPT, ignore_eos=True, **fields
    )


async def read(job: Job) -> tuple[list[float], Done | Dropped]:
    """The times at which tokens came, and the ending."""
    times: list[float] = []
    while texts := await job.stream.take():
        times += [now()] * len(texts)
    assert job.stream.ending is not None
    return times, job.stream.ending


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(scenario: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        run(scenario())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


def wasted(loop: EngineLoop, reason: str) -> float:
    return loop._metrics.wasted_seconds[reason]._value.get()


@in_virtual_time
async def test_tokens_come_at_the_pace_of_the_latency_model():
    async with turning() as loop:
        times, ending = await read(loop.submit(asking("a", 4)))
    assert times == pytest.approx([0.023, 0.044, 0.065, 0.086])
    assert isinstance(ending, Done)
    assert (ending.usage.prompt_tokens, ending.usage.completion_tokens, ending.batch_size) == (2, 4, 1)
    assert (ending.timings.queue_ms, ending.timings.first_token_ms, ending.timings.total_ms) == (0, 23, 86)


@in_virtual_time
async def test_a_newcomer_joins_at_the_next_step_boundary():
    async with turning() as loop:
        first = asyncio.create_task(read(loop.submit(asking("a", 4))))
        await asyncio.sleep(0.030)
        second = loop.submit(asking("b", 1))
        times, ending = await read(second)
        assert times == pytest.approx([0.044 + 0.020 + 2 * 0.001 + 2 * 0.001])
        assert ending.batch_size == 2
        assert (await first)[0] == pytest.approx([0.023, 0.044, 0.068, 0.089])


@in_virtual_time
async def test_an_idle_worker_does_nothing_for_an_hour_and_answers_at_once():
    async with turning() as loop:
        await asyncio.sleep(3600)
        assert loop.engine.computed == {}
        times, _ = await read(loop.submit(asking("a", 1)))
    assert times == pytest.approx([3600.023])


@in_virtual_time
async def test_a_static_batch_waits_for_its_window_and_lets_nobody_in_while_it_runs():
    async with turning(batching=Batching.STATIC) as loop:
        first = asyncio.create_task(read(loop.submit(asking("a", 3))))
        await asyncio.sleep(0.060)
        second = asyncio.create_task(read(loop.submit(asking("b", 1))))
        assert (await first)[0] == pytest.approx([0.073, 0.094, 0.115])
        assert (await second)[0] == pytest.approx([0.115 + 0.023])  # its window ended while the batch ran


@in_virtual_time
async def test_a_full_static_batch_does_not_wait():
    async with turning(batching=Batching.STATIC) as loop:
        jobs = [loop.submit(asking(id, 1)) for id in "ab"]
        answers = [await read(job) for job in jobs]
    assert [times for times, _ in answers] == [pytest.approx([0.026])] * 2
    assert [ending.batch_size for _, ending in answers] == [2, 2]


@in_virtual_time
async def test_continuous_batching_serves_uneven_lengths_sooner_than_static():
    async def all_served(batching: Batching) -> float:
        began = now()
        async with turning(slots=4, queue_size=12, batching=batching) as loop:
            jobs = [loop.submit(asking(str(n), 200 if n % 4 == 0 else 10)) for n in range(16)]
            await asyncio.gather(*(read(job) for job in jobs))
            return now() - began

    assert await all_served(Batching.STATIC) > 2.5 * await all_served(Batching.CONTINUOUS)


@in_virtual_time
async def test_a_cancelled_sequence_frees_its_slot_within_the_step_and_no_token_is_computed_for_it():
    async with turning(slots=1) as loop:
        gone, next_one = loop.submit(asking("a", 100)), loop.submit(asking("b", 1))
        await asyncio.sleep(0.050)
        computed = loop.engine.computed["a"]
        assert loop.cancel("a")
        assert loop.running == 0
        times, _ = await read(next_one)
        assert times == pytest.approx([0.065 + 0.023])  # the step that ran, then its own
        assert loop.engine.computed["a"] == computed
        assert (await read(gone))[1].outcome is Outcome.CLIENT_GONE
        assert wasted(loop, "client_gone") == pytest.approx(0.050)


@in_virtual_time
async def test_a_cancelled_id_can_be_used_again_at_once():
    async with turning(slots=1) as loop:
        loop.submit(asking("a", 100))
        await asyncio.sleep(0.030)
        loop.cancel("a")
        again = loop.submit(asking("a", 2))
        times, ending = await read(again)
        assert len(times) == 2
        assert isinstance(ending, Done)
        assert not loop.cancel("a")


@in_virtual_time
async def test_a_cancel_that_meets_the_last_step_is_neither_lost_nor_doubled():
    async with turning() as loop:
        job = loop.submit(asking("a", 1))
        await asyncio.sleep(0.010)  # its only token is being computed
        loop.abandon(job)
        loop.abandon(job)
        times, ending = await read(job)
        assert (times, ending.outcome) == ([], Outcome.CLIENT_GONE)
        assert loop.engine.running == loop.running == 0
        await asyncio.sleep(1)
        assert job.ticket.outcome is Outcome.CLIENT_GONE
        assert loop._metrics.requests[Outcome.SERVED]._value.get() == 0


@in_virtual_time
async def test_cancels_at_random_points_leave_nothing_behind():
    chance = random.Random(7)
    async with turning(slots=4, queue_size=8) as loop:
        for number in range(200):
            job = loop.submit(asking(f"r{number}", chance.randint(1, 20)))
            await asyncio.sleep(chance.uniform(0, 0.3))
            computed = job.sequence.completion_tokens
            ended = job.ticket.outcome is not None
            assert loop.cancel(job.id) is not ended
            await asyncio.sleep(0.05)
            assert job.sequence.completion_tokens == computed
        assert (loop.running, loop.waiting, loop.engine.running, loop.engine.kv_usage) == (0, 0, 0, 0)
        ended_as = {outcome.value: child._value.get() for outcome, child in loop._metrics.requests.items()}
        assert ended_as["served"] + ended_as["client_gone"] == 200


@in_virtual_time
async def test_a_deadline_in_the_line_ends_the_wait_at_once():
    async with turning(slots=1) as loop:
        loop.submit(asking("a", 100))
        late = loop.submit(asking("b", 1, deadline_s=0.1))
        _, ending = await read(late)
        assert ending.outcome is Outcome.DEADLINE_EXPIRED
        assert now() == pytest.approx(0.1)
        assert "b" not in loop.engine.computed


@in_virtual_time
async def test_a_deadline_during_a_step_ends_the_answer_at_once_and_computes_no_more():
    async with turning(slots=1) as loop:
        times, ending = await read(loop.submit(asking("a", 100, deadline_s=0.05)))
        assert len(times) == 2
        assert ending.outcome is Outcome.DEADLINE_EXCEEDED
        assert now() == pytest.approx(0.05)
        await asyncio.sleep(1)
        assert loop.engine.computed["a"] == 3  # the one under way was thrown away
        assert wasted(loop, "deadline_exceeded") == pytest.approx(0.05)


@in_virtual_time
async def test_a_token_due_exactly_at_the_deadline_is_not_sent():
    async with turning() as loop:
        times, ending = await read(loop.submit(asking("a", 1, deadline_s=0.023)))
    assert (times, ending.outcome) == ([], Outcome.DEADLINE_EXCEEDED)


@in_virtual_time
async def test_a_request_beyond_the_bound_is_refused_with_the_expected_wait():
    async with turning(slots=2, queue_size=2) as loop:
        for id in "abcd":
            loop.submit(asking(id, 10))
        await asyncio.sleep(0.1)
        with pytest.raises(Refused) as refusal:
            loop.submit(asking("e"))
        details = refusal.value.details
        assert (refusal.value.outcome, details.status, details.queue_depth) == (Outcome.YIELD, "yield", 2)
        assert details.predicted_wait_ms == pytest.approx(150, abs=1)  # three, for two slots that are 100 ms old
        assert details.predicted_wait_ms <= details.retry_hint_ms <= 1.2 * details.predicted_wait_ms + 1
        assert (loop.running, loop.waiting) == (2, 2)


@in_virtual_time
async def test_the_expected_wait_comes_true_for_equal_requests():
    async with turning(slots=2, queue_size=4) as loop:
        await asyncio.gather(*(read(loop.submit(asking(f"w{n}", 10))) for n in range(2)))
        for id in "abcd":
            loop.submit(asking(id, 10))
        await asyncio.sleep(0)
        predicted_s = loop.predicted_wait_s()
        began = now()
        job = loop.submit(asking("last", 1))
        await read(job)
        assert job.started_at - began == pytest.approx(predicted_s, rel=0.4)


@in_virtual_time
async def test_an_id_that_is_here_already_is_refused_and_the_first_goes_on():
    async with turning() as loop:
        first = loop.submit(asking("a", 2))
        with pytest.raises(BadInput) as refusal:
            loop.submit(asking("a", 2))
        assert (refusal.value.status, refusal.value.param) == (409, "id")
        assert isinstance((await read(first))[1], Done)


@in_virtual_time
async def test_a_reader_that_stalls_is_dropped_and_does_not_hold_up_the_batch():
    async with turning(slots=2, buffer_tokens=5) as loop:
        stalled, other = loop.submit(asking("a", 100)), loop.submit(asking("b", 20))
        times, ending = await read(other)
        assert isinstance(ending, Done)
        assert times[-1] == pytest.approx(0.026 + 5 * 0.022 + 14 * 0.021)
        assert stalled.stream.ending.outcome is Outcome.CLIENT_GONE
        assert loop.engine.computed["a"] == 6
        assert wasted(loop, "write_stall") > 0


@in_virtual_time
async def test_an_answer_asked_for_whole_is_never_a_stalled_reader():
    async with turning(buffer_tokens=5) as loop:
        job = loop.submit(asking("a", 50, stream=False))
        assert len(await job.stream.take()) == 50
        assert isinstance(job.stream.ending, Done)


@in_virtual_time
async def test_a_stop_string_over_a_token_border_ends_the_answer_before_it():
    async with turning() as loop:
        whole = loop.submit(asking("a", 20, stream=False))
        text = "".join(await whole.stream.take())
        stop = text[14:22]
        cut = loop.submit(asking("b", 200, stream=False, stop=[stop]))
        assert "".join(await cut.stream.take()) == text[: text.index(stop)]
        assert cut.stream.ending.finish_reason == "stop"
        assert loop.running == loop.engine.running == 0


@in_virtual_time
async def test_text_held_back_for_a_stop_string_is_sent_when_the_answer_ends():
    async with turning() as loop:
        whole = loop.submit(asking("a", 4, stream=False))
        text = "".join(await whole.stream.take())
        other = loop.submit(asking("b", 4, stream=False, stop=[text[-3:] + "never"]))
        assert "".join(await other.stream.take()) == text


@in_virtual_time
async def test_draining_refuses_the_line_at_once_and_finishes_what_runs():
    async with turning(slots=1) as loop:
        running, queued = loop.submit(asking("a", 10)), loop.submit(asking("b", 10))
        await asyncio.sleep(0.05)
        loop.drain(grace_s=5)
        assert queued.stream.ending.outcome is Outcome.DRAINING
        with pytest.raises(Refused) as refusal:
            loop.submit(asking("c"))
        assert refusal.value.outcome is Outcome.DRAINING
        times, ending = await read(running)
        assert len(times) == 10
        assert isinstance(ending, Done)


@in_virtual_time
async def test_draining_ends_what_outlasts_the_grace():
    async with turning(slots=1) as loop:
        running = loop.submit(asking("a", 1000))
        await asyncio.sleep(0.05)
        loop.drain(grace_s=1)
        _, ending = await read(running)
        assert (ending.outcome, now()) == (Outcome.DRAINING, pytest.approx(1.05))


@in_virtual_time
async def test_a_failed_step_ends_those_that_ran_and_nobody_else():
    async with turning(slots=1) as loop:
        hit, spared = loop.submit(asking("a", 10)), loop.submit(asking("b", 2))
        await asyncio.sleep(0.03)
        loop.engine.fail_next = "step"
        assert (await read(hit))[1].outcome is Outcome.INTERNAL
        assert isinstance((await read(spared))[1], Done)
        assert loop.alive


@in_virtual_time
async def test_a_failed_admission_ends_that_request_and_nobody_else():
    async with turning(slots=2) as loop:
        loop.engine.fail_next = "admit"
        hit, spared = loop.submit(asking("a", 2)), loop.submit(asking("b", 2))
        assert (await read(hit))[1].outcome is Outcome.INTERNAL
        assert isinstance((await read(spared))[1], Done)


@in_virtual_time
async def test_a_loop_that_dies_leaves_nobody_waiting_and_says_it_has_no_capacity():
    async with turning(slots=1) as loop:
        loop._deliver = None  # any bug in the loop itself
        job = loop.submit(asking("a"))
        assert (await read(job))[1].outcome is Outcome.INTERNAL
        assert not loop.alive
        with pytest.raises(Refused) as refusal:
            loop.submit(asking("b"))
        assert refusal.value.outcome is Outcome.NO_CAPACITY


@in_virtual_time
async def test_a_short_lag_is_made_up_so_that_the_pace_is_kept_over_many_steps():
    async with turning() as loop:
        job = loop.submit(asking("a", 100, stream=False))
        while not job.ticket.outcome:
            await asyncio.sleep(0.0007)
            loop_clock = asyncio.get_running_loop()._jumping
            loop_clock.now += 0.0005  # the host is late, again and again
        assert now() == pytest.approx(0.023 + 99 * 0.021, abs=0.005)


@in_virtual_time
async def test_repr_tells_the_state():
    async with turning(slots=1) as loop:
        for id in "ab":
            loop.submit(asking(id))
        await asyncio.sleep(0.01)
        assert repr(loop) == "<EngineLoop alive, 1/1 running, 1 waiting>"
