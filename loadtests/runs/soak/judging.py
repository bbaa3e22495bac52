"""Samples of a process, and whether any of what it holds grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from loadtests.runs.soak.sampling import Sample
from loadtests.runs.soak.slope import per_minute

MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Something that is held, and how much more of it there may be each minute."""

    name: str
    of: Callable[[Sample], float | None]
    most_per_minute: float


KINDS = (
    Kind("memory, MB", lambda sample: sample.memory_bytes / MIB, 1.0),
    Kind("descriptors", lambda sample: sample.descriptors, 2.0),
    Kind("threads", lambda sample: sample.threads, 1.0),
    Kind("tasks", lambda sample: sample.tasks, 2.0),
)


STORE_KINDS = tuple(replace(kind, most_per_minute=10.0) if kind.name == "descriptors" else kind for kind in KINDS)
"""Of a database, which keeps the files that it has once opened: one for each table, each index and each session."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Of one kind, after the warm-up: the first and the last median, and the slope of all of them."""

    kind: Kind
    first: float
    last: float
    per_minute: float

    @property
    def flat(self) -> bool:
        return self.per_minute <= self.kind.most_per_minute


def trends(samples: Sequence[Sample], warmup_s: float, round_s: float, kinds: Sequence[Kind] = KINDS) -> list[Trend]:
    """Of every kind that was told. A round has its burst, so it is one point: its median."""
    found = []
    for kind in kinds:
        points = medians([(one.at_s, value) for one in samples if (value := kind.of(one)) is not None], round_s)
        points = [point for point in points if point[0] >= warmup_s]
        if points:
            found.append(Trend(kind, points[0][1], points[-1][1], per_minute(points)))
    return found


def medians(points: Sequence[tuple[float, float]], round_s: float) -> list[tuple[float, float]]:
    """One for each round that was seen to its end, at its middle."""
    rounds: dict[int, list[float]] = {}
    for at_s, value in points:
        rounds.setdefault(int(at_s // round_s), []).append(value)
    last = int(points[-1][0] // round_s) if points else 0
    return [((number + 0.5) * round_s, median(values)) for number, values in rounds.items() if number < last]
