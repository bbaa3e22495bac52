"""How a semantic cache would err: every question of the set asked of a cache that holds what was asked first.

All `asked` questions are kept. Each paraphrase and each near miss is then looked up: the nearest kept question answers,
if the cosine reaches the threshold. Right is the paraphrase's own group; anything else is a wrong hit. A question that
is kept word for word is left out of its own look-up, since the exact cache would have answered it.

The chance of a wrong hit is judged by its upper confidence bound (Clopper and Pearson, one-sided, 95 %), not by the
share that was seen: none of 254 still allows 1.2 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from services.retrieval.minilm import Floats

QUESTIONS = Path(__file__).with_name("questions.yaml")
THRESHOLDS = [round(0.70 + 0.01 * step, 2) for step in range(30)]
MOST_WRONG = 0.01
CONFIDENCE = 0.95

Embed = Callable[[Sequence[str]], Floats]


@dataclass(frozen=True)
class Group:
    """A question, other words for it, and questions that look like it."""

    asked: str
    same: list[str]
    other: list[str]


@dataclass(frozen=True)
class Lookup:
    """A question that was looked up, the nearest kept one and their cosine. `right`: they have the same answer."""

    question: str
    nearest: str
    cosine: float
    right: bool
    near_miss: bool


@dataclass(frozen=True)
class Point:
    """What a threshold gives: counts of look-ups."""

    threshold: float
    paraphrases: int
    near_misses: int
    hits: int
    wrong: int

    @property
    def hit_rate(self) -> float:
        """Of the paraphrases, those that were answered, and rightly."""
        return self.hits / self.paraphrases

    @property
    def wrong_rate(self) -> float:
        """Of all look-ups, those that were answered with another question's results."""
        return self.wrong / self.lookups

    @property
    def lookups(self) -> int:
        return self.paraphrases + self.near_misses

    @property
    def wrong_at_most(self) -> float:
        return upper_bound(self.wrong, self.lookups)


def read(path: Path = QUESTIONS) -> list[Group]:
    """The question set."""
    return [Group(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def look_up(groups: Sequence[Group], embed: Embed) -> list[Lookup]:
    """Every paraphrase and every near miss, asked of a cache that holds the first question of each group."""
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
    """What each threshold gives."""
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
    """The lowest threshold from which on a wrong hit is rare enough, by its bound; None if there is none."""
    best = None
    for point in sorted(points, key=lambda point: -point.threshold):
        if point.wrong_at_most > MOST_WRONG:
            break
        best = point
    return best


def upper_bound(wrong: int, of: int, confidence: float = CONFIDENCE) -> float:
    """The largest rate at which no more than `wrong` of `of` still has a chance of 1 - confidence."""
    low, high = wrong / of, 1.0
    if wrong >= of:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(wrong, of, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(wrong: int, of: int, rate: float) -> float:
    """The chance of at most `wrong` successes in `of` trials."""
    return math.fsum(
        math.exp(
            math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1)
            + k * math.log(rate) + (of - k) * math.log1p(-rate)
        )
        for k in range(wrong + 1)
    )  # fmt: skip
