"""What the tests of the engine loop share: an engine that counts and fails, and a loop that turns it."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from services.contracts.generate import Done, GenerateRequest
from services.core.batcher import BatchFormer, Batching
from services.runtime.log import Log
from services.worker.batching import EngineLoop
from services.worker.engine import Step
from services.worker.engine_executor import EngineExecutor, LocalExecutor
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics
from services.worker.stream import Dropped
from tests.virtual import run

PROMPT = "one two"  # 2 tokens
STALL_S = 5.0


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
    *,
    slots: int = 2,
    queue_size: int = 2,
    batching: Batching = Batching.CONTINUOUS,
    buffer_tokens: int = 64,
    executor: EngineExecutor | None = None,
    log: Log | None = None,
) -> AsyncIterator[EngineLoop]:
    scheduler: BatchFormer[Job] = BatchFormer(batching, slots=slots, queue_size=queue_size, window_s=0.05)
    log = log or Log("worker", stream=io.BytesIO())
    loop = EngineLoop(
        executor or LocalExecutor(CountingEngine(slots)), scheduler,
        metrics=WorkerMetrics(CollectorRegistry()), log=log,
        chance=random.Random(1), stream_buffer_tokens=buffer_tokens, stall_s=STALL_S,
    )  # fmt: skip
    await loop.start()
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
