"""What a run consists of: parts, each with a stack of its own, and what comes of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PER_S = 100.0
KILL_EVERY_S = 4.0
"""A killed worker is back, and used again, before the next one is killed."""
REQUESTS_OF_A_PART = 20_000
LEAVERS_PER_S = 40.0  # for telling how long a run still takes
START_S = 20.0  # the same


class Kind(StrEnum):
    """What is done in a part."""

    FAULTS = "faults"
    KILLS = "kills"
    NONCES = "nonces"
    LEAVERS = "leavers"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is asked for: `requests` among `faults`; workers' `kills`, each with the load of four seconds; `nonces`,
    asked before evil workers; `leavers`, clients that disconnect. 0 leaves that kind out."""

    requests: int = 100_000
    faults: int = 300
    kills: int = 100
    nonces: int = 20_000
    leavers: int = 2_400
    seed: int = 1
    per_s: float = PER_S

    @property
    def whole(self) -> bool:
        """Whether nothing is asked for less often than by default."""
        usual = Sizes()
        names = ("requests", "faults", "kills", "nonces", "leavers")
        return all(getattr(self, name) >= getattr(usual, name) for name in names)


@dataclass(frozen=True, slots=True)
class Part:
    """A part: its place in the run from 1, what is done, its seed, and how many requests (or leavers) and faults."""

    number: int
    kind: Kind
    seed: int
    requests: int
    faults: int
    per_s: float

    @property
    def seconds(self) -> float:
        """How long its load lasts."""
        return self.requests / (LEAVERS_PER_S if self.kind is Kind.LEAVERS else self.per_s)

    @property
    def takes_s(self) -> float:
        """About how long it takes, with its stack's start."""
        return self.seconds + START_S


FROZEN_AND_KILLED_EVERY_S = 8.0


def parts_of(sizes: Sizes) -> list[Part]:
    """The parts of a run, in their order. Their requests and faults add up to what is asked for."""
    kills = round(sizes.kills * KILL_EVERY_S * sizes.per_s)
    troubles = max(2, round(sizes.nonces / sizes.per_s / FROZEN_AND_KILLED_EVERY_S))
    wanted = [
        (Kind.FAULTS, sizes.requests, sizes.faults), (Kind.KILLS, kills, sizes.kills),
        (Kind.NONCES, sizes.nonces, troubles), (Kind.LEAVERS, sizes.leavers, 0),
    ]  # fmt: skip
    found: list[Part] = []
    for kind, requests, faults in wanted:
        count = 1 if kind is Kind.LEAVERS else -(-requests // REQUESTS_OF_A_PART)
        for index in range(count if requests else 0):
            number = len(found) + 1
            shares = (_share(requests, index, count), _share(faults, index, count))
            found.append(Part(number, kind, sizes.seed + number - 1, *shares, sizes.per_s))
    return found


def _share(of: int, index: int, count: int) -> int:
    """The part at `index` of a number in `count` nearly equal parts."""
    return of * (index + 1) // count - of * index // count


@dataclass
class Done:
    """A part that was played. `counts`: by name, to be added up; `faults`: by "part: what"; `values`: of leavers.

    `kept`: the first of what must never be, in words. `still_s`: how long the machine stood still meanwhile.
    """

    part: int
    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    values: dict[str, float] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    took_s: float = 0.0
    still_s: float = 0.0


def read(row: Mapping[str, Any]) -> Done:
    """A part as it was kept: its `vars`."""
    return Done(**{**row, "counts": Counter(row["counts"]), "faults": Counter(row["faults"])})
