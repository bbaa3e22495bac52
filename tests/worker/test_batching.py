"""The engine loop in virtual time: the cadence of tokens, who joins when, bounds and readers."""

from __future__ import annotations

import asyncio

import pytest

from services.contracts.generate import Done
from services.core.batcher import Batching
from services.core.outcome import Outcome
from services.runtime.errors import BadInput, Refused
from tests.virtual import stand_still
from tests.worker.rig import asking, in_virtual_time, now, read, turning, wasted


@in_virtual_time
async def test_tokens_come_at_the_pace_of_the_latency_model():
    async with turning() as loop:
        times, ending = await read(await loop.submit(asking("a", 4)))
    assert times == pytest.approx([0.023, 0.044, 0.065, 0.086])
    assert isinstance(ending, Done)
    assert (ending.usage.prompt_tokens, ending.usage.completion_tokens, ending.batch_size) == (2, 4, 1)
    assert (ending.timings.queue_ms, ending.timings.first_token_ms, ending.timings.total_ms) == (0, 23, 86)


@in_virtual_time
async def test_a_newcomer_joins_at_the_next_step_boundary():
    async with turning() as loop:
        first = asyncio.create_task(read(await loop.submit(asking("a", 4))))
        await asyncio.sleep(0.030)
        second = await loop.submit(asking("b", 1))
        times, ending = await read(second)
        assert times == pytest.approx([0.044 + 0.020 + 2 * 0.001 + 2 * 0.001])
        assert ending.batch_size == 2
        assert (await first)[0] == pytest.approx([0.023, 0.044, 0.068, 0.089])


@in_virtual_time
async def test_an_idle_worker_does_nothing_for_an_hour_and_answers_at_once():
    async with turning() as loop:
        await asyncio.sleep(3600)
        assert loop.executor.engine.computed == {}
        times, _ = await read(await loop.submit(asking("a", 1)))
    assert times == pytest.approx([3600.023])


@in_virtual_time
async def test_a_static_batch_waits_for_its_window_and_lets_nobody_in_while_it_runs():
    async with turning(batching=Batching.STATIC) as loop:
        first = asyncio.create_task(read(await loop.submit(asking("a", 3))))
        await asyncio.sleep(0.060)
        second = asyncio.create_task(read(await loop.submit(asking("b", 1))))
        assert (await first)[0] == pytest.approx([0.073, 0.094, 0.115])
        assert (await second)[0] == pytest.approx([0.115 + 0.023])  # its window ended while the batch ran


@in_virtual_time
async def test_a_full_static_batch_does_not_wait():
    async with turning(batching=Batching.STATIC) as loop:
        jobs = [await loop.submit(asking(id, 1)) for id in "ab"]
        answers = [await read(job) for job in jobs]
    assert [times for times, _ in answers] == [pytest.approx([0.026])] * 2
    assert [ending.batch_size for _, ending in answers] == [2, 2]


@in_virtual_time
async def test_continuous_batching_serves_uneven_lengths_sooner_than_static():
    async def all_served(batching: Batching) -> float:
        began = now()
        async with turning(slots=4, queue_size=12, batching=batching) as loop:
            jobs = [await loop.submit(asking(str(n), 200 if n % 4 == 0 else 10)) for n in range(16)]
            await asyncio.gather(*(read(job) for job in jobs))
            return now() - began

    assert await all_served(Batching.STATIC) > 2.5 * await all_served(Batching.CONTINUOUS)


@in_virtual_time
async def test_a_request_beyond_the_bound_is_refused_with_the_expected_wait():
    async with turning(slots=2, queue_size=2) as loop:
        for id in "abcd":
            await loop.submit(asking(id, 10))
        await asyncio.sleep(0.1)
        with pytest.raises(Refused) as refusal:
            await loop.submit(asking("e"))
        details = refusal.value.details
        assert (refusal.value.outcome, details.status, details.queue_depth) == (Outcome.YIELD, "yield", 2)
        assert details.predicted_wait_ms == pytest.approx(150, abs=1)  # three, for two slots that are 100 ms old
        assert details.predicted_wait_ms <= details.retry_hint_ms <= 1.2 * details.predicted_wait_ms + 1
        assert (loop.running, loop.waiting) == (2, 2)


@in_virtual_time
async def test_the_expected_wait_comes_true_for_equal_requests():
    async with turning(slots=2, queue_size=4) as loop:
        await asyncio.gather(*[read(await loop.submit(asking(f"w{n}", 10))) for n in range(2)])
        for id in "abcd":
            await loop.submit(asking(id, 10))
        await asyncio.sleep(0)
        predicted_s = loop.predicted_wait_s()
        began = now()
        job = await loop.submit(asking("last", 1))
        await read(job)
        assert job.started_at - began == pytest.approx(predicted_s, rel=0.4)


@in_virtual_time
async def test_an_id_that_is_here_already_is_refused_and_the_first_goes_on():
    async with turning() as loop:
        first = await loop.submit(asking("a", 2))
        with pytest.raises(BadInput) as refusal:
            await loop.submit(asking("a", 2))
        assert (refusal.value.status, refusal.value.param) == (409, "id")
        assert isinstance((await read(first))[1], Done)


@in_virtual_time
async def test_a_reader_that_stalls_is_dropped_and_does_not_hold_up_the_batch():
    async with turning(slots=2, buffer_tokens=5) as loop:
        stalled, other = await loop.submit(asking("a", 100)), await loop.submit(asking("b", 20))
        times, ending = await read(other)
        assert isinstance(ending, Done)
        assert times[-1] == pytest.approx(0.026 + 5 * 0.022 + 14 * 0.021)
        assert stalled.stream.ending.outcome is Outcome.CLIENT_GONE
        assert loop.executor.engine.computed["a"] == 6
        assert wasted(loop, "write_stall") > 0


@in_virtual_time
async def test_an_answer_asked_for_whole_is_never_a_stalled_reader():
    async with turning(buffer_tokens=5) as loop:
        job = await loop.submit(asking("a", 50, stream=False))
        assert len(await job.stream.take()) == 50
        assert isinstance(job.stream.ending, Done)


@in_virtual_time
async def test_a_stop_string_over_a_token_border_ends_the_answer_before_it():
    async with turning() as loop:
        whole = await loop.submit(asking("a", 20, stream=False))
        text = "".join(await whole.stream.take())
        stop = text[14:22]
        cut = await loop.submit(asking("b", 200, stream=False, stop=[stop]))
        assert "".join(await cut.stream.take()) == text[: text.index(stop)]
        assert cut.stream.ending.finish_reason == "stop"
        assert loop.running == loop.executor.engine.running == 0


@in_virtual_time
async def test_text_held_back_for_a_stop_string_is_sent_when_the_answer_ends():
    async with turning() as loop:
        whole = await loop.submit(asking("a", 4, stream=False))
        text = "".join(await whole.stream.take())
        other = await loop.submit(asking("b", 4, stream=False, stop=[text[-3:] + "never"]))
        assert "".join(await other.stream.take()) == text


@in_virtual_time
async def test_a_short_lag_is_made_up_so_that_the_pace_is_kept_over_many_steps():
    async with turning() as loop:
        job = await loop.submit(asking("a", 100, stream=False))
        while not job.ticket.outcome:
            await asyncio.sleep(0.0007)
            stand_still(0.0005)  # the host is late, again and again
        assert now() == pytest.approx(0.023 + 99 * 0.021, abs=0.005)


@in_virtual_time
async def test_repr_tells_the_state():
    async with turning(slots=1) as loop:
        for id in "ab":
            await loop.submit(asking(id))
        await asyncio.sleep(0.01)
        assert repr(loop) == "<EngineLoop alive, 1/1 running, 1 waiting>"
