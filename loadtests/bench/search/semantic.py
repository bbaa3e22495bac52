"""The error rate of a semantic cache, and the cost of a lookup: each question is looked up among the first ones.

A question that is kept word for word is excluded from its own lookup, since the exact cache would have answered it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from loadtests.bench.search.embedder import Embedder
from loadtests.cluster.embedded import valkey
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Plot, Result
from services.cli.valkey import program
from services.contracts.search import Passage
from services.retrieval.cache import WRITE_TIMEOUT_S
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.search_params import SearchParams
from services.retrieval.semantic import Semantic
from services.runtime.valkey import redis_client

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

QUESTIONS = Path(__file__).with_name("semantic.yaml")
THRESHOLDS = [round(0.70 + 0.01 * step, 2) for step in range(30)]
MAX_WRONG = 0.01
CONFIDENCE = 0.95
SIZES = (1_000, 10_000)
LOOKUPS = 300
PLENTY_BYTES = 1 << 31
PARAMS = SearchParams(1.0, 5)
SHOWN = 12
ALT = "Paraphrases found and wrong hits over the threshold"
QUESTION = "Is the nearest question the same question?"
METHOD = """\
The cache holds the first question of every group. Each paraphrase and each near miss is looked up: the nearest kept
question answers if their cosine reaches the threshold. It is a wrong hit if that is another question, by the
hand-written groups (`loadtests/bench/search/semantic.yaml`). Half of the lookups are near misses: negations, other
numbers, other names, opposites. That is deliberately harder than traffic: how many of a tenant's questions look alike
and differ is not known in advance, and a tenant with such questions gets wrong answers.

Wrong hits have to stay at or below 1 % of all lookups, by the upper end of the one-sided 95 % confidence interval
instead of the observed share, at a threshold and at all above it. Lookups of one group are not wholly independent,
which makes that limit a little too low.
"""
COSTS = """\
Median processor time: of a lookup in the process, and of a Redis client for a round trip, if the vectors were there.
The server's own time and the network come on top.
"""


class Group(msgspec.Struct, frozen=True):
    """A question, paraphrases of it (`same`), and similar questions with another answer (`other`)."""

    asked: str
    same: list[str]
    other: list[str]


@dataclass(frozen=True)
class Lookup:
    """A lookup, the nearest kept question and their cosine. `right`: both have the same answer."""

    question: str
    nearest: str
    cosine: float
    right: bool
    near_miss: bool


@dataclass(frozen=True)
class Point:
    threshold: float
    paraphrases: int
    near_misses: int
    hits: int
    wrong: int

    @property
    def hit_rate(self) -> float:
        """The share of the paraphrases that were answered rightly."""
        return self.hits / self.paraphrases

    @property
    def lookups(self) -> int:
        return self.paraphrases + self.near_misses

    @property
    def wrong_rate(self) -> float:
        """The share of all lookups that were answered with another question's results."""
        return self.wrong / self.lookups

    @property
    def wrong_at_most(self) -> float:
        """The upper confidence limit of the wrong rate."""
        return upper_bound(self.wrong, self.lookups)


async def measure(say: Say) -> Result:
    embedder = Embedder()
    found = look_up(read(), embedder)
    say("all questions are looked up")
    costs_us = {f"a lookup among {entries:,} questions": lookup_us(entries) for entries in SIZES} | await redis_us()
    return result(curve(found), found, costs_us, on=embedder.described)


def read() -> list[Group]:
    return msgspec.yaml.decode(QUESTIONS.read_bytes(), type=list[Group])


def look_up(groups: Sequence[Group], embed: Callable[[Sequence[str]], Floats]) -> list[Lookup]:
    kept = embed([group.asked for group in groups])
    found = []
    for number, group in enumerate(groups):
        for near_miss, questions in ((False, group.same), (True, group.other)):
            for question, cosines in zip(questions, embed(questions) @ kept.T, strict=True):
                itself = [other.asked == question for other in groups]
                nearest = int(np.argmax(np.where(itself, -1.0, cosines)))
                right = nearest == number and not near_miss
                found.append(Lookup(question, groups[nearest].asked, float(cosines[nearest]), right, near_miss))
    return found


def curve(found: Sequence[Lookup], thresholds: Sequence[float] = THRESHOLDS) -> list[Point]:
    misses = sum(each.near_miss for each in found)
    return [
        Point(
            threshold,
            paraphrases=len(found) - misses,
            near_misses=misses,
            hits=sum(each.right and each.cosine >= threshold for each in found),
            wrong=sum(not each.right and each.cosine >= threshold for each in found),
        )
        for threshold in thresholds
    ]


def chosen(points: Sequence[Point]) -> Point | None:
    """The lowest threshold at and above which the upper limit of wrong hits is small enough; None if there is none."""
    best = None
    for point in sorted(points, key=lambda point: -point.threshold):
        if point.wrong_at_most > MAX_WRONG:
            break
        best = point
    return best


def upper_bound(wrong: int, of: int, confidence: float = CONFIDENCE) -> float:
    """The one-sided upper confidence limit of the rate (Clopper and Pearson); 0 of 254 still allows 1.2 % at 95 %."""
    if wrong >= of:
        return 1.0
    low, high = wrong / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(wrong, of, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(wrong: int, of: int, rate: float) -> float:
    return math.fsum(
        math.exp(
            math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
            + k * math.log(rate) + (of - k) * math.log1p(-rate)
        )
        for k in range(wrong + 1)
    )  # fmt: skip


# The cost of a lookup


def vectors(count: int) -> Floats:
    """Vectors in random directions, of shape (count, DIMENSIONS)."""
    drawn: Floats = np.random.default_rng(1).normal(size=(count, DIMENSIONS)).astype(np.float32)
    return drawn


def lookup_us(entries: int) -> float:
    """Median microseconds of processor time of a lookup among so many questions of a tenant."""
    cache = Semantic(threshold=0.1, stale_s=60.0, tenant_entries=entries, max_bytes=PLENTY_BYTES, clock=lambda: 0.0)
    results = [Passage("guide.md#0", "guide.md", 1, "text", 0.5)]
    kept = vectors(entries)
    for number, vector in enumerate(kept):
        cache.keep(
            "demo", version=1, variant="", query=str(number), vector=vector, results=results, params=PARAMS, ttl_s=60.0
        )
    took = []
    for vector in kept[:LOOKUPS]:
        began = time.thread_time_ns()
        found = cache.nearest("demo", version=1, variant="", vector=vector, params=PARAMS)
        took.append((time.thread_time_ns() - began) / 1000)
        assert found is not None
    return statistics.median(took)


async def redis_us() -> dict[str, float]:
    """The client's processor time of a shared cache: a round trip, or fetching all vectors. Empty without Valkey."""
    if program() is None:
        return {}
    number = SIZES[0]
    with valkey() as server:
        client = redis_client(server.url, timeout_s=5.0, connections=1, socket_timeout_s=WRITE_TIMEOUT_S)
        try:
            await client.set("few", b"x" * 64)
            await client.set("vectors", vectors(number).tobytes())
            return {
                "one round trip to Redis, for 64 bytes": await _median_us(lambda: client.get("few")),
                f"one that fetches {number:,} vectors": await _median_us(lambda: client.get("vectors")),
            }
        finally:
            await client.aclose()


async def _median_us(ask: Callable[[], Awaitable[object]]) -> float:
    took = []
    for _ in range(LOOKUPS):
        began = time.thread_time_ns()
        assert await ask()
        took.append((time.thread_time_ns() - began) / 1000)
    return statistics.median(took)


# The page


def verdict(best: Point | None) -> str:
    if best is None or best.hits == 0:
        from_where = "no threshold reaches that" if best is None else f"only thresholds from {best.threshold:.2f} do"
        return (
            f"**No threshold is both safe and of use.** At most {MAX_WRONG:.0%} wrong hits are allowed; {from_where}, "
            "and there no paraphrase is found. The semantic cache is off by default: `SEMANTIC_THRESHOLD` is 0."
        )
    return (
        f"**{best.threshold:.2f} is the lowest safe threshold:** {best.hit_rate:.1%} of the paraphrases are found, and "
        f"at most {best.wrong_at_most:.1%} of all lookups are answered wrongly ({best.wrong} of {best.lookups} seen)."
    )


def result(points: Sequence[Point], found: Sequence[Lookup], costs_us: Mapping[str, float], *, on: str = "") -> Result:
    rates = (
        "threshold:", "paraphrases found:", "wrong hits:", "of all lookups:",
        f"with {CONFIDENCE:.0%} confidence at most:"
    )  # fmt: skip
    wrong = sorted((each for each in found if not each.right), key=lambda each: -each.cosine)
    far = sorted((each for each in found if each.right), key=lambda each: each.cosine)
    blocks: list[Block] = [
        verdict(chosen(points)), Plot(ALT, lambda theme: _drawn(points, theme)), METHOD,
        table(rates, map(_row, points)),
        "## Questions taken for the same\n\nThe lookups nearest to a question with another answer:",
        table(("cosine:", "asked", "taken for"), map(_lookup, wrong[:SHOWN])),
        "And the paraphrases farthest from their question:",
        table(("cosine:", "asked", "first asked as"), map(_lookup, far[: SHOWN // 2])),
        "## The cost of a lookup\n\n" + COSTS,
        table(("", "microseconds:"), ((what, f"{spent:,.0f}") for what, spent in costs_us.items())),
    ]  # fmt: skip
    figures = [Figure(what, spent, "us") for what, spent in costs_us.items()]
    return Result("Errors of a semantic cache", {"the cost of a lookup": figures}, blocks, on)


def _row(point: Point) -> tuple[str, ...]:
    return (
        f"{point.threshold:.2f}", f"{point.hit_rate:.1%}", str(point.wrong), f"{point.wrong_rate:.1%}",
        f"{point.wrong_at_most:.1%}",
    )  # fmt: skip


def _lookup(found: Lookup) -> tuple[str, ...]:
    return f"{found.cosine:.3f}", found.question, found.nearest


def _drawn(points: Sequence[Point], theme: Theme) -> Drawing:
    from loadtests.report.style import SMALL_PT, headline, sheet

    at = [point.threshold for point in points]
    figure, (axes,) = sheet(1, left=0.07, right=0.78)
    note = f"{points[0].paraphrases} paraphrases and {points[0].near_misses} near misses, all-MiniLM-L6-v2."
    headline(figure, theme, QUESTION, note)
    for name, values, color, above in (
        ("answered wrongly,\nof all lookups", [100 * point.wrong_rate for point in points], theme.wasted, 6),
        ("paraphrases found", [100 * point.hit_rate for point in points], theme.weir, 2),
    ):
        axes.plot(at, values, color=color, linewidth=2.4)
        axes.text(at[-1] + 0.004, values[-1] + above, name, color=color, va="bottom")
    axes.axhline(100 * MAX_WRONG, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(at[0], 100 * MAX_WRONG + 0.6, "allowed: 1 %", color=theme.quiet, fontsize=SMALL_PT)
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(0, None)
    axes.set_xlabel("threshold of the cosine")
    axes.set_ylabel("% of questions")
    return figure
