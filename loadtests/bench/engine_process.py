"""What it costs to keep an engine in a process of its own: CPU time of a step's round trip.

One and the same simulated engine, whose steps take no time but that of its own code, is stepped in this process and
behind another. The difference is the price of the isolation. Time is CPU time, user and system, of each process, so
that a busy machine changes it little; the wall time of a round trip, which it does change, is in the note.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from loadtests.bench.machine import cpu_s
from loadtests.report.figure import Figure
from services.contracts.generate import GenerateRequest
from services.worker.engine_wire import Simulated
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.process import EngineProcess

BATCHES = (8, 64)
STEPS = 5_000
UNIT = "us of CPU"


@dataclass(frozen=True)
class Cost:
    """Microseconds a step."""

    batch: int
    alone: float
    worker: float
    child: float
    wall: float


def request(number: int) -> GenerateRequest:
    return GenerateRequest(
        id=f"r{number}", tenant="t", deadline_ms=60_000, max_tokens=STEPS * 2, prompt="one two three", ignore_eos=True
    )


def alone_us(batch: int) -> float:
    """In this process."""
    engine = SimulatedEngine(
        model="m", slots=batch, kv_tokens=batch * STEPS * 3, latency=LatencyModel(), chance=random.Random(0)
    )
    for number in range(batch):
        engine.admit(engine.prepare(request(number)))
    before = time.process_time()
    for _ in range(STEPS):
        engine.step()
    return (time.process_time() - before) / STEPS * 1e6


async def cost(batch: int) -> Cost:
    host = EngineProcess(Simulated(slots=batch, kv_tokens=batch * STEPS * 3), start_within_s=60)
    await host.start()
    for number in range(batch):
        host.admit(await host.prepare(request(number)))
    await host.step()
    assert host.pid is not None
    pid = host.pid
    before, child_before, began = time.process_time(), cpu_s(pid), time.perf_counter()
    for _ in range(STEPS):
        await host.step()
    worker, child, wall = time.process_time() - before, cpu_s(pid) - child_before, time.perf_counter() - began
    await host.stop()
    return Cost(batch, alone_us(batch), *(seconds / STEPS * 1e6 for seconds in (worker, child, wall)))


async def measure(seconds: float) -> list[Figure]:
    """Of each size of batch. `seconds` plays no part: so many steps take as long as they take."""
    return [figure for batch in BATCHES for figure in _figures(await cost(batch))]


def _figures(cost: Cost) -> list[Figure]:
    named = f"a step of {cost.batch} sequences"
    return [
        Figure(f"{named}, in one process", cost.alone, UNIT),
        Figure(f"{named}, behind another: in the worker", cost.worker, UNIT, note=f"{cost.wall:.0f} us of wall time"),
        Figure(f"{named}, behind another: there", cost.child, UNIT),
    ]
