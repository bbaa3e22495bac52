"""The parts of a run, each with its own stack, and the results of a part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PER_S = 100.0
KILL_EVERY_S = 4.0
"""A killed worker is back and in use before the next one is killed."""
REQUESTS_OF_A_PART = 20_000
LEAVERS_PER_S = 40.0  # for the estimate of the remaining time
START_S = 20.0  # for the same estimate


class Kind(StrEnum):
    FAULTS = "faults"
    KILLS = "kills"
    NONCES = "nonces"
    LEAVERS = "leavers"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a run; 0 leaves a kind out. `requests`: among `faults` faults. `kills`: of workers, each with four
    seconds of load. `nonces`: requests before byzantine workers. `leavers`: clients that disconnect."""

    requests: int = 100_000
    faults: int = 300
    kills: int = 100
    nonces: int = 20_000
    leavers: int = 2_400
    seed: int = 1
    per_s: float = PER_S

    @property
    def whole(self) -> bool:
        """Whether each number is at least its default."""
        usual = Sizes()
        names = ("requests", "faults", "kills", "nonces", "leavers")
        return all(getattr(self, name) >= getattr(usual, name) for name in names)


@dataclass(frozen=True, slots=True)
class Part:
    """A part: its number from 1, its kind and seed, and its requests (or leavers) and faults."""

    number: int
    kind: Kind
    seed: int
    requests: int
    faults: int
    per_s: float

    @property
    def seconds(self) -> float:
        return self.requests / (LEAVERS_PER_S if self.kind is Kind.LEAVERS else self.per_s)

    @property
    def takes_s(self) -> float:
        return self.seconds + START_S


FROZEN_AND_KILLED_EVERY_S = 8.0


def parts_of(sizes: Sizes) -> list[Part]:
    """The parts of a run, in order. Their requests and faults add up to the sizes."""
    kills = round(sizes.kills * KILL_EVERY_S * sizes.per_s)
    faults_of_nonces = max(2, round(sizes.nonces / sizes.per_s / FROZEN_AND_KILLED_EVERY_S))
    wanted = [
        (Kind.FAULTS, sizes.requests, sizes.faults), (Kind.KILLS, kills, sizes.kills),
        (Kind.NONCES, sizes.nonces, faults_of_nonces), (Kind.LEAVERS, sizes.leavers, 0),
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
    """The share at `index` when a number is split into `count` nearly equal integers."""
    return of * (index + 1) // count - of * index // count


@dataclass
class Done:
    """The results of a part. `counts` are added up by name; `faults` are keyed "part: what"; `values` are of leavers.

    `kept`: messages of the first breaches. `still_s`: how long the machine stalled.
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
    return Done(**{**row, "counts": Counter(row["counts"]), "faults": Counter(row["faults"])})
