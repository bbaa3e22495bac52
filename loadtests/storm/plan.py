"""What a run will do, as data: who asks, how often, how patiently, and what breaks when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MOST_RATE_PER_S = 1000.0
MOST_CONNECTIONS = 800
MOST_SECONDS, LEAST_SECONDS = 60.0, 10.0
MOST_PATIENCE_S = 12.0
MOST_TRIES = 6
"""The first attempt and five more."""


@dataclass(frozen=True, slots=True)
class Step:
    """From this second on, so many times what the workers can do."""

    from_s: float
    times: float


@dataclass(frozen=True, slots=True)
class Load:
    """One tenant's people. Before its first step it is silent."""

    tenant: str
    steps: tuple[Step, ...]

    def times_at(self, at_s: float) -> float:
        """Its multiple of capacity at this second."""
        return next((step.times for step in reversed(self.steps) if step.from_s <= at_s), 0.0)


@dataclass(frozen=True, slots=True)
class Question:
    """What everybody asks. `prompt_tokens` is what it comes to with passages, for reckoning how many can be done."""

    route: Literal["chat", "ask"] = "chat"
    prompt_tokens: int = 16
    answer_tokens: int = 24


@dataclass(frozen=True, slots=True)
class Manners:
    """How people behave. `leaving_share` of them lose patience early, somewhere before half of the deadline."""

    deadline_s: float = 2.0
    patience_s: float = 3.0
    leaving_share: float = 0.0
    retries: int = 0
    obeys_hints: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.deadline_s <= self.patience_s <= MOST_PATIENCE_S:
            raise ValueError(f"nobody waits {self.patience_s:g} s for a deadline of {self.deadline_s:g} s")
        if not 0 <= self.leaving_share <= 1 or not 0 <= self.retries < MOST_TRIES:
            raise ValueError("a share is from 0 to 1, and nobody tries for ever")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is broken on purpose, from when to when. `factor`: how many times as long a step takes."""

    kind: Literal["one_worker", "all_workers", "cache"]
    from_s: float
    until_s: float
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Chapter:
    """What is going on from this second on, in a few words."""

    from_s: float
    words: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seconds: float
    loads: tuple[Load, ...]
    chapters: tuple[Chapter, ...]
    question: Question = Question()
    manners: Manners = Manners()
    troubles: tuple[Trouble, ...] = ()

    def __post_init__(self) -> None:
        if not LEAST_SECONDS <= self.seconds <= MOST_SECONDS:
            raise ValueError(f"a run takes {LEAST_SECONDS:g} to {MOST_SECONDS:g} s, not {self.seconds:g}")
        if any(not 0 <= trouble.from_s < trouble.until_s <= self.seconds for trouble in self.troubles):
            raise ValueError("what is broken is mended before the run ends")

    @property
    def most_times(self) -> float:
        """The highest multiple of capacity that is asked for at once."""
        return max(map(self.times_at, self._turns()))

    def times_at(self, at_s: float) -> float:
        """The multiple of capacity that all tenants ask for at this second."""
        return sum(load.times_at(at_s) for load in self.loads)

    def words_at(self, at_s: float) -> str:
        """What is going on at this second."""
        return next((chapter.words for chapter in reversed(self.chapters) if chapter.from_s <= at_s), "")

    def _turns(self) -> Iterator[float]:
        yield 0.0
        for load in self.loads:
            yield from (step.from_s for step in load.steps)
