"""The six storms: scenario files, adapted by `stages.console` and the sliders.

Loads are multiples of capacity, so all machines show the same picture. Tenant names are unique to storms, so the
router's counters for them belong to this run; only `redis_gone` uses the tenant whose documents `weir up` ingests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadtests.load.plan import Plan, Step, Tenant
from loadtests.scenarios import model
from loadtests.scenarios.arrivals import Poisson
from loadtests.scenarios.changes import put
from loadtests.scenarios.distributions import Constant, Distribution, constant
from loadtests.scenarios.model import Retries, TenantGroup, Turn
from loadtests.scenarios.stages import for_stage, retimed, unjudged
from loadtests.storm.sliders import MAX_CLIENT_TIMEOUT_S, MAX_RATE_PER_S, MAX_SECONDS, MAX_TRIES, MIN_SECONDS, slider
from services.cli.errors import LabError
from services.contracts.storm import Slider

BUTTONS = ("steady", "burst", "noisy_neighbour", "retry_storm", "slow_worker", "redis_gone")
"""In display order."""
LATEST_END = 0.6
"""Latest end of an adjustable outage, as a share of the run."""

Values = Mapping[str, float]
Need = Literal["faults", "redis"]


@dataclass(frozen=True, slots=True)
class Storm:
    """One run of an adapted file. `leaving`: share of clients that disconnect before half of the deadline."""

    file: model.Scenario
    leaving: float = 0.0

    def __post_init__(self) -> None:
        """Raises LabError if the console cannot play the file or a limit is exceeded."""
        for wrong, why in self._faults():
            if wrong:
                raise LabError(why)

    def _faults(self) -> Iterator[tuple[bool, str]]:
        tenants = self.file.tenants
        ways = [
            (_number(one.deadline_s), _number(one.client_timeout_s or one.deadline_s), one.retries) for one in tenants
        ]
        retries = tenants[0].retries
        for group in tenants:  # these raise for a size that is no number and arrivals without a load
            _load(group), _number(group.prompt_tokens), _number(group.context_tokens)
        yield (
            ways != ways[:1] * len(ways),
            "tenants: for the console, all have the same deadline, patience and retries.",
        )
        yield (
            any(each.kind != "slow" or each.workers not in (None, 1) for each in failures(self.file)),
            "workers.failures: the console slows one worker, or all of them.",
        )
        yield (
            not MIN_SECONDS <= self.seconds <= MAX_SECONDS,
            f"A storm takes {MIN_SECONDS:g} to {MAX_SECONDS:g} s, not {self.seconds:g}.",
        )
        yield (
            any(end > self.seconds for _, end in self.troubles),
            "Every fault must end before the storm ends.",
        )
        yield (
            not 0 < self.deadline_s <= self.client_timeout_s <= MAX_CLIENT_TIMEOUT_S,
            f"A patience of {self.client_timeout_s:g} s is out of bounds for a deadline of {self.deadline_s:g} s.",
        )
        yield (
            not 0 <= self.leaving <= 1 or retries.attempts >= MAX_TRIES,
            f"A share is from 0 to 1, and a client of a storm tries at most {MAX_TRIES} times.",
        )

    @property
    def seconds(self) -> float:
        return self.file.duration_s

    @property
    def deadline_s(self) -> float:
        return _number(self.file.tenants[0].deadline_s)

    @property
    def client_timeout_s(self) -> float:
        """The timeout of clients that do not leave early."""
        return _number(self.file.tenants[0].client_timeout_s or self.file.tenants[0].deadline_s)

    @property
    def tokens(self) -> tuple[float, int]:
        """Prompt tokens with passages, and answer tokens."""
        group = self.file.tenants[0]
        return _number(group.prompt_tokens) + _number(group.context_tokens), group.max_tokens

    @property
    def asks(self) -> bool:
        return self.file.tenants[0].ask == 1

    @property
    def troubles(self) -> list[tuple[float, float]]:
        """Begin and end of each fault."""
        slow = [(each.from_s, each.until_s) for each in failures(self.file)]
        return slow + [(each.from_s, each.until_s) for each in self.file.cache_silent]

    @property
    def max_times(self) -> float:
        """The highest multiple of capacity at any time."""
        return max(self.times_at(at) for group in self.file.tenants for at in _poisson(group).moments)

    def times_at(self, at_s: float) -> float:
        """The multiple of capacity at this second, over all tenants."""
        return sum(_load(group) * _poisson(group).times_at(at_s) for group in self.file.tenants)

    def words_at(self, at_s: float) -> str:
        """The phase at this second."""
        return next((words for from_s, words in reversed(self.chapters) if from_s <= at_s), "")

    @property
    def chapters(self) -> list[tuple[float, str]]:
        """Begin and name of each phase."""
        return [(window.from_s, window.name.replace("_", " ")) for window in self.file.windows]

    def per_s(self, capacity_per_s: float, max_per_s: float = MAX_RATE_PER_S) -> float:
        """Requests per second at load 1: the capacity, or less if the peak would exceed the limit.

        All tenants are reduced in proportion.
        """
        return min(capacity_per_s, max_per_s / self.max_times) if self.max_times else capacity_per_s

    def plan(self, per_s: float) -> Plan:
        """The plan for the open loop at this rate per unit of load. Equal rates give equal requests."""
        retries = self.file.tenants[0].retries
        tenants = (
            Tenant(
                group.name,
                tuple(Step(at, per_s * _load(group) * _poisson(group).times_at(at)) for at in _poisson(group).moments),
                prompt_tokens=constant(_number(group.prompt_tokens)),
                answer_tokens=constant(group.max_tokens),
                deadline_ms=1000 * self.deadline_s,
                client_timeout_ms=1000 * self.client_timeout_s,
                retries=retries if retries.attempts else Retries(),
            )
            for group in self.file.tenants
        )
        return Plan(self.seconds, tuple(tenants), "ask" if self.asks else "chat", warmup_s=0, cooldown_s=0)


@dataclass(frozen=True, slots=True)
class Button:
    """A scenario of the console and its sliders. `needs`: the fault that the bench must be able to cause."""

    name: str
    raw: Mapping[str, Any]
    turns: tuple[Turn, ...]
    file: model.Scenario
    sliders: tuple[Slider, ...]

    @property
    def caption(self) -> str:
        return " ".join(self.file.about.split())

    @property
    def needs(self) -> Need | None:
        return "faults" if failures(self.file) else "redis" if self.file.cache_silent else None

    def storm(self, values: Values) -> Storm:
        """The storm for these slider values; others keep the file's value. Raises LabError."""
        raw = copy.deepcopy(dict(self.raw))
        for path, value in _changes(self.file, self.turns, values):
            put(raw, path, value, "sliders")
        file = retimed(model.parse(raw, name=self.name), _clock(self.file, values))
        return Storm(file, values.get("leaving", 0.0) / 100)


def load(name: str) -> Button:
    """Load a scenario that ships. Raises LabError."""
    path = model.find(name)
    raw = unjudged(for_stage(model.load_raw(path), "console", name))
    file = model.parse(raw, name=path.name, folder=path.parent)
    turns = file.stages["console"].sliders if "console" in file.stages else ()
    if not turns:
        raise LabError(f"{path.name}: the console plays what has sliders under stages.console.")
    return Button(name, raw, turns, file, tuple(map(slider, turns)))


def _changes(file: model.Scenario, turns: Sequence[Turn], values: Values) -> Iterator[tuple[str, Any]]:
    """The changes of the file for these slider values: path and value."""
    for turn in turns:
        if turn.name == "intensity" and turn.name in values:
            yield from _loads(file, turn, values["intensity"])
    usual, retries = Storm(file), file.tenants[0].retries
    deadline_s = values.get("deadline_ms", 1000 * usual.deadline_s) / 1000
    attempts = int(values.get("retries", retries.attempts))
    wait = "hint" if values.get("obey_hints", retries.wait == "hint") else "immediate"
    for group in file.tenants:
        yield f"tenants.{group.name}.deadline_s", deadline_s
        yield f"tenants.{group.name}.client_timeout_s", usual.client_timeout_s * deadline_s / usual.deadline_s
        yield f"tenants.{group.name}.retries", {"attempts": attempts, "wait": wait}
    for number, workers in enumerate(file.workers):
        for at, failure in enumerate(workers.failures):
            yield f"workers.{number}.failures.{at}.factor", values.get("slow_factor", failure.factor)


def _loads(file: model.Scenario, turn: Turn, times: float) -> Iterator[tuple[str, Any]]:
    """Set the total load to `times` capacity, always or in the phase of the slider's window."""
    groups = [group for group in file.tenants if not turn.of or group.name in turn.of]
    factor = times / sum(map(_load, groups))
    begins_s = next((window.from_s for window in file.windows if window.name == turn.during), None)
    for group in groups:
        if begins_s is None:
            yield f"tenants.{group.name}.arrivals.load", _load(group) * factor
        for at, phase in enumerate(_poisson(group).phases):
            if phase.from_s == begins_s:
                yield f"tenants.{group.name}.arrivals.phases.{at}.times", factor


def _clock(file: model.Scenario, values: Values) -> Callable[[float], float]:
    """Maps the file's seconds to the run's, in proportion, except the end of an outage with a chosen length."""
    seconds = values.get("seconds", file.duration_s)
    pace = seconds / file.duration_s
    if "outage_s" not in values:
        return lambda second: second * pace
    (outage,) = failures(file)
    end_s = min(outage.from_s * pace + values["outage_s"], LATEST_END * seconds)
    return lambda second: end_s if second == outage.until_s else second * pace


def failures(file: model.Scenario) -> list[model.Failure]:
    return [failure for workers in file.workers for failure in workers.failures]


def _load(group: TenantGroup) -> float:
    load = _poisson(group).load
    if load is None:
        raise LabError(f"tenants.{group.name}.arrivals: the console knows capacity alone: write load.")
    return load


def _poisson(group: TenantGroup) -> Poisson:
    if not isinstance(group.arrivals, Poisson) or group.count != 1:
        raise LabError(f"tenants.{group.name}: the console plays single tenants with poisson arrivals.")
    return group.arrivals


def _number(distribution: Distribution) -> float:
    if not isinstance(distribution, Constant):
        raise LabError("tenants: for the console, lengths and times are numbers.")
    return distribution.value


SCENARIOS: Mapping[str, Button] = {name: load(name) for name in BUTTONS}
