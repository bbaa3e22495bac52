"""The cost of an engine in its own process: the round trip of a step.

The same simulated engine is stepped in this process and in another, in turns, so that other load on the machine affects
both alike. The benchmark `batching` does the same with a model.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.cluster.usage import cpu_s
from loadtests.report.figure import Figure
from services.contracts.generate import GenerateRequest
from services.worker.child import make_engine
from services.worker.engine import Engine
from services.worker.engine_wire import Simulated
from services.worker.process import EngineProcess

BATCHES = (8, 64)
TURNS, STEPS = 5, 1_000
START_S = 60.0
UNIT = "us of CPU"


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds: wall time, CPU time of this process, and CPU time of the engine's process."""

    wall_s: float
    cpu_s: float
    child_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """The cost of a step in this process and in another: the medians of the turns."""

    here: Spent
    there: Spent


async def in_turns(
    here: Engine, there: EngineProcess, requests: Sequence[GenerateRequest], *, turns: int, steps: int
) -> Compared:
    """Both engines step the same requests after their prompts were read; they do nothing else."""
    ours = [here.prepare(request) for request in requests]
    theirs = [await there.prepare(request) for request in requests]
    for mine, other in zip(ours, theirs, strict=True):
        here.admit(mine)
        there.admit(other)
    while any(sequence.unread_tokens for sequence in ours):
        here.step()
    while any(sequence.unread_tokens for sequence in theirs):
        await there.step()
    spent = [(_steps_here(here, steps), await _steps_there(there, steps)) for _ in range(turns)]
    for mine, other in zip(ours, theirs, strict=True):
        here.drop(mine)
        there.drop(other)
    there.rest()
    return Compared(*(_median(each) for each in zip(*spent, strict=True)))


def _steps_here(engine: Engine, steps: int) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        engine.step()
    return Spent((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps)


async def _steps_there(engine: EngineProcess, steps: int) -> Spent:
    assert engine.pid is not None
    wall, cpu, child = time.perf_counter(), time.process_time(), cpu_s(engine.pid)
    for _ in range(steps):
        await engine.step()
    wall, cpu, child = time.perf_counter() - wall, time.process_time() - cpu, cpu_s(engine.pid) - child
    return Spent(wall / steps, cpu / steps, child / steps)


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(*(statistics.median(getattr(each, name) for each in spent) for name in Spent.__slots__))


async def measure() -> list[Figure]:
    return [figure for batch in BATCHES for figure in await _figures(batch)]


async def _figures(batch: int) -> list[Figure]:
    tokens = 2 * TURNS * STEPS
    spec = Simulated(slots=batch, kv_tokens=batch * tokens * 2)
    there = EngineProcess(spec, start_within_s=START_S)
    await there.start()
    try:
        requests = [_request(number, tokens) for number in range(batch)]
        cost = await in_turns(make_engine(spec), there, requests, turns=TURNS, steps=STEPS)
    finally:
        await there.stop()
    name = f"a step of {batch} sequences"
    trip = f"{cost.there.wall_s * 1e6:.0f} us of wall time"
    return [
        Figure(f"{name}, in one process", cost.here.cpu_s * 1e6, UNIT),
        Figure(f"{name}, in another process: the worker's part", cost.there.cpu_s * 1e6, UNIT, note=trip),
        Figure(f"{name}, in another process: the engine's part", cost.there.child_s * 1e6, UNIT),
    ]


def _request(number: int, tokens: int) -> GenerateRequest:
    return GenerateRequest(
        id=f"r{number}", tenant="t", deadline_ms=60_000, max_tokens=tokens, prompt="one two three", ignore_eos=True
    )
