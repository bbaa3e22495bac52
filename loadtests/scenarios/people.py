"""A scenario as Locust's users play it: groups, questions, deadlines, and the number of users at each moment.

`stages.locust` of the file gives numbers of users instead of rates, and their pace. Every number has a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from loadtests.scenarios import model
from loadtests.scenarios.arrivals import Closed, Crowd
from loadtests.scenarios.bounds import one_of, within
from loadtests.scenarios.distributions import Constant, Distribution, Uniform
from loadtests.scenarios.model import Failure, Retries, TenantGroup, Window
from loadtests.scenarios.stages import for_stage, unjudged
from services.cli.errors import LabError

SCENARIOS = Path(__file__).parent
MAX_USERS = 1000
MAX_SECONDS = 1800
SHORTEST_STAGE_S = 3
MAX_STAGES = 12
MAX_GROUPS = 8
MAX_DEADLINE_MS = 120_000
MAX_SLOW_FACTOR = 1000
MAX_RETRIES = 10

SURFACES = ("ask", "chat", "stream")
SLOWED = ("none", "one", "all")
UNNAMED = "between"
"""The stage for moments outside the file's windows."""

NO_RETRIES = Retries()

_NAME = re.compile(r"[a-z][a-z0-9_.\-]{0,31}")


@dataclass(frozen=True)
class Group:
    """Users of one tenant. `surfaces` are shares; `think_s` is the range of a user's pause after an answer.

    `retries` applies after a refusal. Users disconnect after `client_timeout_ms`; 0 waits for the answer.
    """

    name: str
    deadline_ms: int
    max_tokens: int
    think_s: tuple[float, float]
    surfaces: Mapping[str, float]
    retries: Retries = NO_RETRIES
    client_timeout_ms: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tenant is {self.name!r}; small letters, digits, dots, dashes and _ were expected")
        within(f"{self.name}: deadline, in ms,", self.deadline_ms, 1, MAX_DEADLINE_MS)
        within(f"{self.name}: max_tokens", self.max_tokens, 1, 2048)
        within(f"{self.name}: patience, in ms,", self.client_timeout_ms, 0, MAX_DEADLINE_MS)
        within(f"{self.name}: retries.attempts", self.retries.attempts, 0, MAX_RETRIES)
        within(f"{self.name}: think_s, the least,", self.think_s[0], 0, 600)
        within(f"{self.name}: think_s, the most,", self.think_s[1], self.think_s[0], 600)
        if not self.surfaces:
            raise ValueError(f"{self.name}: a share for one of {', '.join(SURFACES)} was expected")
        for surface, share in self.surfaces.items():
            one_of(f"{self.name}: surfaces", surface, SURFACES)
            within(f"{self.name}: the share of {surface}", share, 0.001, 1000)


@dataclass(frozen=True)
class Stage:
    """`users` per group for `seconds`; their number grows by `spawn_per_s`.

    `slow_workers`: the workers whose steps take `slow_factor` times as long meanwhile.
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
        within(f"{self.name}: seconds", self.seconds, 1, MAX_SECONDS)
        within(f"{self.name}: spawn_per_s", self.spawn_per_s, 0.1, MAX_USERS)
        for group, count in self.users.items():
            within(f"{self.name}: users of {group}", count, 0, MAX_USERS)
            if not isinstance(count, int):
                raise ValueError(f"{self.name}: users of {group} is {count!r}; a whole number was expected")
        within(f"{self.name}: users together", self.all_users, 1, MAX_USERS)
        one_of(f"{self.name}: slow_workers", self.slow_workers, SLOWED)
        within(f"{self.name}: slow_factor", self.slow_factor, 1, MAX_SLOW_FACTOR)
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
    """A run: its question, events, groups and stages."""

    name: str
    asks: str
    caption: str
    watch: tuple[str, ...]
    groups: tuple[Group, ...]
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not (self.asks and self.caption and self.watch):
            raise ValueError("people need a question, an about, and what to look at (watch)")
        within("the number of tenants", len(self.groups), 1, MAX_GROUPS)
        within("the number of stages", len(self.stages), 1, MAX_STAGES)
        within("the stages' seconds together", self.seconds, 1, MAX_SECONDS)
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError("two of the tenants have the same name")
        for stage in self.stages:
            if unknown := sorted(stage.users.keys() - set(names)):
                raise ValueError(f"{stage.name}: users of no group: {', '.join(unknown)}")

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def max_users(self) -> int:
        return max(stage.all_users for stage in self.stages)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """In order, each once: a stage may repeat."""
        return tuple(dict.fromkeys(stage.name for stage in self.stages))

    @property
    def breaks_something(self) -> bool:
        return any(stage.breaks_something for stage in self.stages)

    @property
    def longest_wait_s(self) -> float:
        return max(group.deadline_ms for group in self.groups) / 1000

    def shortened(self, share: float) -> Scenario:
        """The scenario with stages shortened to this share, but not below `SHORTEST_STAGE_S`."""
        within("the share of their time", share, 0.01, 1)
        brief = (
            replace(one, seconds=max(min(one.seconds, SHORTEST_STAGE_S), one.seconds * share)) for one in self.stages
        )
        return replace(self, stages=tuple(brief))

    def stage_at(self, elapsed_s: float) -> Stage | None:
        """The stage at this time; None after the end."""
        ends = accumulate(stage.seconds for stage in self.stages)
        return next((stage for stage, end in zip(self.stages, ends, strict=True) if elapsed_s < end), None)


# ---- reading


def names() -> list[str]:
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml") if _has_people(path))


def load(name: str) -> Scenario:
    """Read scenarios/NAME.yaml. Raises ValueError with the reason."""
    path = SCENARIOS / f"{name}.yaml"
    if Path(name).name != name or not path.is_file():
        raise ValueError(f"SCENARIO={name!r} is unknown; choose one of: {', '.join(names())}")
    try:
        return of_model(name, model.parse(_people(path), name=path.name, folder=path.parent))
    except LabError as error:
        raise ValueError(" ".join([error.message, *error.notes])) from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def of_model(name: str, scenario: model.Scenario) -> Scenario:
    """Convert a scenario. Raises ValueError if Locust's users cannot play it."""
    caption = " ".join(scenario.about.split())
    groups = tuple(map(_group, scenario.tenants))
    return Scenario(name, scenario.question, caption, scenario.watch, groups, tuple(_stages(scenario)))


def _has_people(path: Path) -> bool:
    try:
        raw = _people(path)
        return bool(raw["tenants"]) and all(group["arrivals"]["kind"] == "closed" for group in raw["tenants"])
    except (LabError, KeyError, TypeError):
        return False


def _people(path: Path) -> Any:
    """The raw YAML for this stage."""
    return unjudged(for_stage(model.load_raw(path), "locust", path.stem))


def _group(group: TenantGroup) -> Group:
    if not isinstance(group.arrivals, Closed) or group.count != 1:
        raise ValueError(f"tenants.{group.name}: people are one tenant each, with closed arrivals: see stages.locust")
    client_timeout_s = (
        0.0 if group.client_timeout_s is None else _number(group.client_timeout_s, f"{group.name}: client_timeout_s")
    )
    shares = {"ask": group.ask, "chat": 1 - group.ask - group.stream, "stream": group.stream}
    return Group(
        group.name,
        deadline_ms=round(1000 * _number(group.deadline_s, f"{group.name}: deadline_s")),
        max_tokens=group.max_tokens,
        think_s=_range(group.arrivals.think_s, f"{group.name}: think_s"),
        surfaces={surface: share for surface, share in shares.items() if share > 1e-9},
        retries=group.retries,
        client_timeout_ms=round(1000 * client_timeout_s),
    )


def _stages(scenario: model.Scenario) -> Iterator[Stage]:
    """One stage per interval without changes."""
    crowds = {group.name: group.arrivals for group in scenario.tenants if isinstance(group.arrivals, Closed)}
    failures = [failure for workers in scenario.workers for failure in workers.failures]
    phases = (phase for crowd in crowds.values() for phase in crowd.phases)
    spans: list[Window | Failure | Crowd] = [*scenario.windows, *failures, *phases]
    edges = {0.0, scenario.duration_s} | {edge for span in spans for edge in (span.from_s, span.until_s)}
    for from_s, until_s in pairwise(sorted(edge for edge in edges if edge <= scenario.duration_s)):
        users = {name: crowd.at(from_s) for name, crowd in crowds.items()}
        names = (window.name for window in scenario.windows if window.from_s <= from_s < window.until_s)
        yield Stage(
            next(names, UNNAMED).replace("_", " "),
            until_s - from_s,
            {name: count for name, (count, _) in users.items() if count},
            min(MAX_USERS, sum(per_s or MAX_USERS for count, per_s in users.values() if count)),
            *_slowed([failure for failure in failures if failure.from_s <= from_s < failure.until_s]),
        )


def _slowed(failures: list[Failure]) -> tuple[str, float]:
    if not failures:
        return "none", 1.0
    failure = failures[0]
    if len(failures) > 1 or failure.kind != "slow" or failure.workers not in (None, 1):
        raise ValueError("workers.failures: people's workers are slow, one or all of them, one failure at a time")
    return ("all" if failure.workers is None else "one"), failure.factor


def _number(distribution: Distribution, what: str) -> float:
    if not isinstance(distribution, Constant):
        raise ValueError(f"{what}: for people, a number was expected")
    return distribution.value


def _range(distribution: Distribution, what: str) -> tuple[float, float]:
    match distribution:
        case Constant():
            return distribution.value, distribution.value
        case Uniform():
            return distribution.low, distribution.high
        case _:
            raise ValueError(f"{what}: for people, a number or a uniform range was expected")
