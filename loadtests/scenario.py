"""A scenario: what users ask, by when they want it, and how many they are at each moment. Data, checked when loaded.

Every number has a bound, so that no typing error turns a laptop into a weapon or a test into an evening.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

SCENARIOS = Path(__file__).parent / "scenarios"
MAX_USERS = 1000
MAX_SECONDS = 1800
MAX_DEADLINE_MS = 120_000


@dataclass(frozen=True)
class Stage:
    """So many users for so long; `spawn_per_s` is how fast their number changes."""

    seconds: float
    users: int
    spawn_per_s: float

    def __post_init__(self) -> None:
        _within("seconds", self.seconds, 1, MAX_SECONDS)
        _within("users", self.users, 1, MAX_USERS)
        _within("spawn_per_s", self.spawn_per_s, 0.1, MAX_USERS)


@dataclass(frozen=True)
class Scenario:
    """A run. `think_s` is the range from which a user's pause after an answer is drawn."""

    name: str
    asks: str
    deadline_ms: int
    max_tokens: int
    think_s: tuple[float, float]
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        _within("deadline_ms", self.deadline_ms, 1, MAX_DEADLINE_MS)
        _within("max_tokens", self.max_tokens, 1, 2048)
        if len(self.think_s) != 2:
            raise ValueError("think_s: two numbers were expected, the least and the most")
        least, most = self.think_s
        _within("think_s[0]", least, 0, 600)
        _within("think_s[1]", most, least, 600)
        if not self.stages:
            raise ValueError("a scenario needs at least one [[stages]]")
        _within("the stages' seconds together", self.seconds, 1, MAX_SECONDS)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def stage_at(self, elapsed_s: float) -> Stage | None:
        """The stage that runs so long after the start; none when the scenario is over."""
        ends = accumulate(stage.seconds for stage in self.stages)
        return next((stage for stage, end in zip(self.stages, ends, strict=True) if elapsed_s < end), None)


def _within(what: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{what} is {value!r}; a number from {least:g} to {most:g} was expected")


def load(name: str) -> Scenario:
    """Read scenarios/NAME.toml. Raises ValueError that says what is wrong with it."""
    path = SCENARIOS / f"{name}.toml"
    known = sorted(found.stem for found in SCENARIOS.glob("*.toml"))
    if name not in known:
        raise ValueError(f"SCENARIO={name!r} is unknown; choose one of: {', '.join(known)}")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        stages = tuple(Stage(**stage) for stage in raw.pop("stages", []))
        think_s = tuple(raw.pop("think_s", ()))
        return Scenario(name=name, stages=stages, think_s=think_s, **raw)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path.name}: {error}") from None
