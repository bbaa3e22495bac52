"""Every assertion of the worker sees its fault, and says which values were wrong: each is planted here, from inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.core.batcher import BatchFormer
from services.core.outcome import Outcome
from services.runtime.errors import Refused
from services.runtime.grantstreams import PushedGrants
from services.worker.engine import Sequence
from services.worker.sequence_table import SequenceTable
from services.worker.stream import AnswerStream, Dropped
from tests.virtual import run
from tests.worker.rig import CountingEngine, asking, read, turning

OVER = Dropped(Outcome.CLIENT_GONE, "gone")


async def a_token_after_the_end() -> None:
    stream = AnswerStream(capacity_tokens=4)
    stream.end(OVER)
    stream.put("late")


async def a_second_end() -> None:
    stream = AnswerStream(capacity_tokens=4)
    stream.end(OVER)
    stream.end(OVER)


async def memory_of_a_process_given_back_twice() -> None:
    roster = SequenceTable()
    roster.add(1, sequence := Sequence(asking("a", 4), 3, 3))
    roster.admit(sequence, slots=2, kv_tokens=100)
    roster._reserved_tokens = 0
    roster.drop(sequence)


async def more_held_than_reserved() -> None:
    engine = CountingEngine(2)
    engine.admit(engine.prepare(asking("a")))
    engine._reserved_tokens = 1
    engine.step()


async def more_reserved_than_there_is() -> None:
    engine = CountingEngine(2)
    engine.admit(engine.prepare(asking("a")))
    engine.kv_tokens = 1
    engine.step()


async def more_given_back_than_held() -> None:
    engine = CountingEngine(2)
    engine.admit(sequence := engine.prepare(asking("a")))
    engine.step()
    engine._held_tokens = 0
    engine.drop(sequence)


async def a_place_that_is_none() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with turning() as loop:
            patch.setattr(BatchFormer, "offer", lambda *_: False)
            await loop.submit(asking("a"))


async def started_without_a_slot() -> None:
    async with turning() as loop:
        job = await loop.submit(asking("a"))
        loop._scheduler.discard(job.id)
        loop._scheduler.slots = 0
        loop._start_batch([job])


async def memory_reserved_by_nobody() -> None:
    async with turning() as loop:
        job = await loop.submit(asking("a"))
        await asyncio.sleep(0.1)
        loop._reserved_tokens += 7
        loop.abandon(job)


async def a_grant_that_was_not_offered() -> None:
    stream = PushedGrants("a", 1)
    stream.end()
    stream.take()


FAULTS: list[tuple[Callable[[], Any], str]] = [
    (a_token_after_the_end, "4 characters after the end: <AnswerStream dropped"),
    (a_second_end, "a second end, Dropped: <AnswerStream dropped"),
    (memory_of_a_process_given_back_twice, "-7 tokens are left, 7 were of a: <SequenceTable"),
    (more_held_than_reserved, "more is held than was reserved: <SimulatedEngine 1/2 slots"),
    (more_reserved_than_there_is, "more is held than was reserved: <SimulatedEngine 1/2 slots"),
    (more_given_back_than_held, "a held more than it had: <SimulatedEngine"),
    (a_place_that_is_none, "there was a place for a, and is none: <EngineLoop"),
    (started_without_a_slot, "a has no slot: <EngineLoop alive, 1/0 running"),
    (a_grant_that_was_not_offered, "no grant was offered: <PushedGrants of a/1, over"),
    (memory_reserved_by_nobody, "7 tokens are reserved after a: <EngineLoop"),
]


@pytest.mark.parametrize(("plant", "told"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_seen_where_it_happens(plant: Callable[[], Any], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        run(plant())


def test_one_that_fires_in_the_loop_ends_all_its_requests_and_the_worker_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with turning(slots=1) as loop:
            job = await loop.submit(asking("a"))
            loop._scheduler.slots = 0
            monkeypatch.setattr(BatchFormer, "_room", lambda *_: 1)
            _, ending = await read(job)
            assert isinstance(ending, Dropped)
            assert ending.outcome is Outcome.INTERNAL
            assert not loop.alive
            with pytest.raises(Refused, match="its log says why"):
                await loop.submit(asking("b"))
            loop._log.close()
            told = loop._log._stream.getvalue().decode()  # type: ignore[attr-defined]
            assert "the engine loop stopped" in told
            assert "0 run and 1 start" in told, "with its values"

    run(main())
