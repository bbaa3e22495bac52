"""The load: prompts of 8 to 64 tokens and answers of very different lengths, the same ones in every run.

Lengths are log-normal, roughly like those of chats. They are taken at evenly spaced quantiles and shuffled instead of
drawn, so that a small load has the same shape as a large one: with sigma 1.31 the 95th percentile is at least 8 times
the median.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.load.figures import quantile_of

SIGMA = 1.31
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 8, 64
SPECIAL_TOKENS = 8  # the first tokens of a vocabulary have special meanings


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt as token numbers, and the exact length of its answer in tokens."""

    number: int
    prompt: tuple[int, ...]
    length: int


def asks(count: int, *, median_tokens: int, vocabulary: int, seed: int = 1) -> list[Ask]:
    chance = random.Random(seed)
    wanted = lengths(count, median_tokens)
    chance.shuffle(wanted)
    prompts = [chance.randint(MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS) for _ in range(count)]
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


def spread(samples: Sequence[float]) -> str:
    p50, p95 = quantile_of(samples, 0.5), quantile_of(samples, 0.95)
    return (
        f"p50 {p50:g}, p95 {p95:g} ({p95 / p50:.1f} times as long), longest {max(samples):g}, {sum(samples):,} in total"
    )
