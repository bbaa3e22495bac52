"""A scenario: who asks, what they want and by when, and how many they are at each moment. Data, checked when loaded.

Every number has a bound, so that no typing error turns a laptop into a weapon or a test into an evening.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).parents[1] / "scenarios"
MAX_USERS = 1000
MAX_SECONDS = 1800
SHORTEST_STAGE_S = 3
MAX_STAGES = 12
MAX_GROUPS = 8
MAX_DEADLINE_MS = 120_000
MAX_SLOW_FACTOR = 1000

SURFACES = ("ask", "chat", "stream")
MANNERS = ("obeys", "insists", "leaves")
SLOWED = ("none", "one", "all")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True)
class Group:
    """Users of one kind. `surfaces` are shares; `think_s` is the range of a user's pause after an answer.

    `manners`, when refused: one who obeys returns after the hint, one who insists asks again at once, one who leaves
    does not ask that question again. `patience_ms`: when they hang up; 0: they wait for the answer.
    """

    name: str
    tenant: str
    deadline_ms: int
    max_tokens: int
    think_s: tuple[float, float]
    surfaces: Mapping[str, float]
    manners: str = "obeys"
    patience_ms: int = 0

    def __post_init__(self) -> None:
        _named("a group's name", self.name)
        _named(f"{self.name}: tenant", self.tenant)
        _within(f"{self.name}: deadline_ms", self.deadline_ms, 1, MAX_DEADLINE_MS)
        _within(f"{self.name}: max_tokens", self.max_tokens, 1, 2048)
        _within(f"{self.name}: patience_ms", self.patience_ms, 0, MAX_DEADLINE_MS)
        _one_of(f"{self.name}: manners", self.manners, MANNERS)
        if len(self.think_s) != 2:
            raise ValueError(f"{self.name}: think_s: two numbers were expected, the least and the most")
        _within(f"{self.name}: think_s[0]", self.think_s[0], 0, 600)
        _within(f"{self.name}: think_s[1]", self.think_s[1], self.think_s[0], 600)
        if not self.surfaces:
            raise ValueError(f"{self.name}: surfaces: a share for one of {', '.join(SURFACES)} was expected")
        for surface, share in self.surfaces.items():
            _one_of(f"{self.name}: surfaces", surface, SURFACES)
            _within(f"{self.name}: surfaces.{surface}", share, 0.01, 1000)


@dataclass(frozen=True)
class Stage:
    """So many users of each group for so long; `spawn_per_s` is how fast their number grows.

    `slow_workers`: whose steps last `slow_factor` times as long meanwhile.
    """

    name: str
    seconds: float
    users: Mapping[str, int]
    spawn_per_s: float
    slow_workers: str = "none"
    slow_factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 40:
            raise ValueError("a stage's name: 1 to 40 characters were expected")
        _within(f"{self.name}: seconds", self.seconds, 1, MAX_SECONDS)
        _within(f"{self.name}: spawn_per_s", self.spawn_per_s, 0.1, MAX_USERS)
        for group, count in self.users.items():
            _within(f"{self.name}: users.{group}", count, 0, MAX_USERS)
            if not isinstance(count, int):
                raise ValueError(f"{self.name}: users.{group} is {count!r}; a whole number was expected")
        _within(f"{self.name}: users together", self.all_users, 1, MAX_USERS)
        _one_of(f"{self.name}: slow_workers", self.slow_workers, SLOWED)
        _within(f"{self.name}: slow_factor", self.slow_factor, 1, MAX_SLOW_FACTOR)
        if (self.slow_workers == "none") != (self.slow_factor == 1):
            raise ValueError(f"{self.name}: slow_workers and slow_factor go together")

    @property
    def all_users(self) -> int:
        return sum(self.users.values())

    @property
    def breaks_something(self) -> bool:
        return self.slow_workers != "none"


@dataclass(frozen=True)
class Scenario:
    """A run: the question that it answers, what happens in it, what to look at, who asks, and when."""

    name: str
    asks: str
    caption: str
    watch: tuple[str, ...]
    groups: tuple[Group, ...]
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not (self.asks and self.caption and self.watch):
            raise ValueError("a scenario needs a question (asks), a caption, and what to look at (watch)")
        _within("the number of [[groups]]", len(self.groups), 1, MAX_GROUPS)
        _within("the number of [[stages]]", len(self.stages), 1, MAX_STAGES)
        _within("the stages' seconds together", self.seconds, 1, MAX_SECONDS)
        for what, names in (
            ("groups", [one.name for one in self.groups]),
            ("stages", [one.name for one in self.stages]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"two of the [[{what}]] have the same name")
        known = {group.name for group in self.groups}
        for stage in self.stages:
            if unknown := sorted(stage.users.keys() - known):
                raise ValueError(f"{stage.name}: users of no group: {', '.join(unknown)}")

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def breaks_something(self) -> bool:
        return any(stage.breaks_something for stage in self.stages)

    @property
    def longest_wait_s(self) -> float:
        """The longest that a user may wait for an answer."""
        return max(group.deadline_ms for group in self.groups) / 1000

    def shortened(self, share: float) -> Scenario:
        """The same with stages of this share of their time, and never less than `SHORTEST_STAGE_S`."""
        _within("the share of their time", share, 0.01, 1)
        brief = (
            replace(one, seconds=max(min(one.seconds, SHORTEST_STAGE_S), one.seconds * share)) for one in self.stages
        )
        return replace(self, stages=tuple(brief))

    def stage_at(self, elapsed_s: float) -> Stage | None:
        """The stage that runs so long after the start; none when the scenario is over."""
        ends = accumulate(stage.seconds for stage in self.stages)
        return next((stage for stage, end in zip(self.stages, ends, strict=True) if elapsed_s < end), None)


def names() -> list[str]:
    """Every scenario that there is."""
    return sorted(found.stem for found in SCENARIOS.glob("*.toml"))


def load(name: str) -> Scenario:
    """Read scenarios/NAME.toml. Raises ValueError that says what is wrong with it."""
    if name not in names():
        raise ValueError(f"SCENARIO={name!r} is unknown; choose one of: {', '.join(names())}")
    path = SCENARIOS / f"{name}.toml"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        groups = tuple(_groups(raw.pop("groups", []), raw.pop("each", {})))
        stages = tuple(Stage(**stage) for stage in raw.pop("stages", []))
        return Scenario(name=name, groups=groups, stages=stages, watch=tuple(raw.pop("watch", ())), **raw)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def _groups(tables: list[dict[str, Any]], each: dict[str, Any]) -> Iterator[Group]:
    """`[each]` holds what all groups have in common."""
    for table in tables:
        fields = {"tenant": "demo", **each, **table}
        yield Group(**fields | {"think_s": tuple(fields.get("think_s", ()))})


def _within(what: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{what} is {value!r}; a number from {least:g} to {most:g} was expected")


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} is {value!r}; one of {', '.join(known)} was expected")


def _named(what: str, value: str) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{what} is {value!r}; small letters, digits and _ were expected")
