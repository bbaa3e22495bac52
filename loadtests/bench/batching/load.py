"""What is asked: prompts of 8 to 64 tokens, answers of very different lengths, the same ones in every run.

Lengths are log-normal, as those of chats roughly are. They are not drawn but taken at evenly spaced quantiles and put
into a random order, so that a small load has the shape as well as a large one has: with sigma 1.31 the 95th percentile
is at least 8 times the median. How they are packed into steps can be counted without a model; `packing` does.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.load.figures import quantile as of_ordered

SIGMA = 1.31
LEAST_PROMPT_TOKENS, MOST_PROMPT_TOKENS = 8, 64
SPECIAL_TOKENS = 8  # the first ones of a vocabulary have a meaning


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, as token numbers, and how many tokens its answer has: neither more nor fewer are wanted."""

    number: int
    prompt: tuple[int, ...]
    length: int


def asks(count: int, *, median_tokens: int, vocabulary: int, seed: int = 1) -> list[Ask]:
    chance = random.Random(seed)
    wanted = lengths(count, median_tokens)
    chance.shuffle(wanted)
    prompts = [chance.randint(LEAST_PROMPT_TOKENS, MOST_PROMPT_TOKENS) for _ in range(count)]
    return [
        Ask(number, prompt(size, vocabulary, chance), length)
        for number, (size, length) in enumerate(zip(prompts, wanted, strict=True))
    ]


def prompt(size: int, vocabulary: int, chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randrange(SPECIAL_TOKENS, vocabulary) for _ in range(size))


def lengths(count: int, median_tokens: int) -> list[int]:
    """The quantiles (i + 1/2) / count of a log-normal distribution, in ascending order; at least 1."""
    normal = statistics.NormalDist()
    heights = (normal.inv_cdf((place + 0.5) / count) for place in range(count))
    return [max(1, round(median_tokens * math.exp(SIGMA * height))) for height in heights]


def quantile(samples: Sequence[float], share: float) -> float:
    """The least sample that this share does not exceed; nan of none."""
    return of_ordered(sorted(samples), share) if samples else math.nan


def spread(samples: Sequence[float]) -> str:
    """How uneven they are, in words."""
    p50, p95 = quantile(samples, 0.5), quantile(samples, 0.95)
    return (
        f"p50 {p50:g}, p95 {p95:g} ({p95 / p50:.1f} times as long), longest {max(samples):g}, {sum(samples):,} in all"
    )


def static_steps(wanted: Sequence[int], slots: int) -> int:
    """A batch lasts as long as its longest."""
    return sum(max(wanted[start : start + slots]) for start in range(0, len(wanted), slots))


def continuous_steps(wanted: Sequence[int], slots: int) -> int:
    """Whoever is next takes the slot that is free first."""
    ends = [0] * slots
    for length in wanted:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


def packing(wanted: Sequence[int], slots: int, orders: int = 1000) -> list[float]:
    """Steps of static over steps of continuous batching, for many orders of arrival: was this one typical?"""
    chance = random.Random(1)
    shuffled = list(wanted)
    ratios = []
    for _ in range(orders):
        chance.shuffle(shuffled)
        ratios.append(static_steps(shuffled, slots) / continuous_steps(shuffled, slots))
    return ratios
