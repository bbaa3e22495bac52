"""A worker's loop around an engine as in service, without HTTP, and a record of its steps."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from services.contracts.generate import Done, GenerateRequest
from services.core.batcher import BatchFormer, Batching
from services.runtime.log import Log
from services.worker.batching import EngineLoop
from services.worker.engine import Sequence, Step
from services.worker.engine_executor import EngineExecutor
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics

START_S, STALL_S = 300.0, 60.0
WORDS = ("water", "river", "weir", "flows", "over", "the", "wall", "and", "a", "pool", "below", "stays", "calm")


class Watched:
    """An executor that counts its steps and records at which step each sequence was admitted."""

    def __init__(self, executor: EngineExecutor) -> None:
        self._executor = executor
        self.started = 0
        self.admitted: list[tuple[Sequence, int, float]] = []
        """(sequence, number of the first step that computes for it, time of the admission)."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def admit(self, sequence: Sequence) -> None:
        self._executor.admit(sequence)
        self.admitted.append((sequence, self.started + 1, asyncio.get_running_loop().time()))

    async def step(self) -> Step:
        self.started += 1
        return await self._executor.step()


@asynccontextmanager
async def turning(executor: Any, *, slots: int) -> AsyncIterator[EngineLoop]:
    """The running loop, which starts and stops its executor."""
    scheduler: BatchFormer[Job] = BatchFormer(Batching.CONTINUOUS, slots=slots, queue_size=2 * slots)
    log = Log("bench", stream=io.BytesIO())
    loop = EngineLoop(
        executor, scheduler, metrics=WorkerMetrics(CollectorRegistry()), log=log, chance=random.Random(1),
        stream_buffer_tokens=4096, stall_s=STALL_S,
    )  # fmt: skip
    await loop.start()
    try:
        yield loop
    finally:
        await loop.stop()
        log.close()


def asking(id: str, words: int, tokens: int) -> GenerateRequest:
    """A prompt of some words, answered greedily and to its full length."""
    chance = random.Random(id)
    return GenerateRequest(
        id=id, tenant="bench", deadline_ms=600_000, max_tokens=tokens, stream=False, temperature=0.0,
        prompt=" ".join(chance.choice(WORDS) for _ in range(words)), ignore_eos=True,
    )  # fmt: skip


async def answer(job: Job) -> str:
    """The whole text. Raises RuntimeError if there is none."""
    text = ""
    while texts := await job.stream.take():
        text += "".join(texts)
    if not isinstance(job.stream.ending, Done):
        raise RuntimeError(f"{job.id} has no answer: {job.stream.ending}")
    return text
