"""One soak: the stack, rounds of load, and a look at every process each second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from loadtests.cluster.making import POSTGRES, VALKEY, Shape
from loadtests.cluster.processes import StandError
from loadtests.cluster.settling import left_over
from loadtests.cluster.stack import Stack, stack
from loadtests.runs.soak.judging import KINDS, STORE_KINDS, Trend, trends
from loadtests.runs.soak.load import ROUND_S, Heard, one_round
from loadtests.runs.soak.sampling import Sample, sample

LOOK_EVERY_S = 1.0
MOST_MINUTES = 24 * 60.0
WARMUP_SHARE, MOST_WARMUP_S = 0.3, 180.0
SETTLED_WITHIN_S = 20.0
LEAST_ROUNDS = 4

Say = Callable[[str], None]


@dataclass
class Result:
    """What came of it. `left`: places that the router still held at the end."""

    minutes: float
    warmup_s: float
    heard: Heard = field(default_factory=Heard)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    left: float = 0.0

    @property
    def trends(self) -> dict[str, list[Trend]]:
        """By process."""
        return {
            name: trends(samples, self.warmup_s, ROUND_S, STORE_KINDS if name in (POSTGRES, VALKEY) else KINDS)
            for name, samples in self.samples.items()
        }

    @property
    def held(self) -> bool:
        """Whether nothing grew, nothing was wrong and nothing was kept."""
        flat = all(trend.flat for found in self.trends.values() for trend in found)
        return (flat or not self.long_enough) and bool(self.samples) and not self.heard.wrong and not self.left

    @property
    def long_enough(self) -> bool:
        """Whether enough rounds count for a slope to mean something."""
        return self.minutes * 60 - self.warmup_s >= LEAST_ROUNDS * ROUND_S


def warmup_s(minutes: float) -> float:
    """How much of a soak does not count: caches fill, and the allocator takes what it will keep."""
    return min(MOST_WARMUP_S, WARMUP_SHARE * minutes * 60)


async def play(minutes: float, say: Say) -> Result:
    """Raises StandError where the stand cannot be set up, or a process ends."""
    say("starting the stack: three workers, retrieval, PostgreSQL, Valkey and the router")
    async with stack(Shape(wires=False)) as made:
        result = Result(minutes, warmup_s(minutes))
        say(f"{minutes:g} minutes, of which {result.warmup_s:.0f} s are warm-up")
        began = perf_counter()
        looking = asyncio.create_task(_look(made, result, began))
        try:
            number = 0
            while (left_s := minutes * 60 - (perf_counter() - began)) > 0:
                number += 1
                await one_round(made.router.url, number, min(ROUND_S, max(1.0, left_s)), result.heard)
                if looking.done():
                    looking.result()
                say(_told(result, perf_counter() - began))
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        result.left = await left_over(made.held, SETTLED_WITHIN_S)
        return result


def _told(result: Result, now_s: float) -> str:
    ended = ", ".join(f"{name} {count:,}" for name, count in sorted(result.heard.verdicts.items()))
    memory = ", ".join(f"{name} {some[-1].memory_bytes / 2**20:.0f}" for name, some in result.samples.items())
    left_s = max(0.0, result.minutes * 60 - now_s)
    return f"  {now_s:5.0f} s, {left_s:.0f} s left; {ended}, left {result.heard.left:,}; MB: {memory}"


async def _look(made: Stack, result: Result, began: float) -> None:
    """Every process, about once a second. Raises StandError where one has ended."""
    metrics = {server.process.name: server.metrics_url for server in made.services}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for name, part in made.parts.items():
            seen = await sample(part.pid, perf_counter() - began, metrics.get(name, ""))
            if seen is None:
                raise StandError(f"{name} has ended")
            result.samples.setdefault(name, []).append(seen)
