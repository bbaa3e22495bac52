"""What a run consists of: parts, each with a stack of its own, and the file in which finished ones are kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
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


class Record:
    """A file of finished parts, one line each. A run that was interrupted goes on after the last of them.

    Its first line says what is played on what; the parts of another run are dropped, with a word.
    """

    def __init__(self, path: Path, sizes: Sizes, machine: str, say: Callable[[str], None]) -> None:
        self._path = path
        self.done: dict[int, Done] = {}
        mine = json.loads(json.dumps({"sizes": asdict(sizes), "machine": machine}))
        head, *rows = _rows(path) or ({},)
        if head == mine:
            self.done = {row["part"]: _read(row) for row in rows}
            say(f"{len(self.done)} parts were played before: the run goes on after them")
            return
        if head:
            say(f"{path} holds another run: it is not used")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine) + "\n", encoding="utf-8")

    def add(self, done: Done) -> None:
        """Keep one more."""
        self.done[done.part] = done
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * (not self._path.read_bytes().endswith(b"\n")) + json.dumps(vars(done)) + "\n")

    def forget(self) -> None:
        """The run is whole: the next one begins anew."""
        self._path.unlink(missing_ok=True)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: a run that was killed may have left half a line."""
    return list(_parsed(path.read_text(encoding="utf-8"))) if path.exists() else []


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _read(row: dict[str, Any]) -> Done:
    return Done(**row | {"counts": Counter(row["counts"]), "faults": Counter(row["faults"])})
