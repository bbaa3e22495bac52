"""The six storms, read from the scenarios that every stage plays: what a file says under `stages.console`, turned.

Loads are multiples of capacity, so that a laptop and a large machine see the same picture. Tenants have names that no
one else in the lab uses, so that the router's counters for them are this run's alone; only `redis_gone` asks as the
tenant whose documents `weir up` ingests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from loadtests.scenarios import model
from loadtests.scenarios.arrivals import Poisson
from loadtests.scenarios.distributions import Constant, Distribution
from loadtests.scenarios.model import TenantGroup, Turn
from loadtests.scenarios.stages import for_stage, unjudged
from loadtests.storm.plan import Chapter, Load, Manners, Plan, Question, Step, Trouble
from loadtests.storm.sliders import slider
from services.cli.errors import LabError
from services.contracts.storm import Slider

BUTTONS = ("steady", "burst", "noisy_neighbour", "retry_storm", "slow_worker", "redis_gone")
"""In this order."""
LATEST_END = 0.6
"""An outage whose length is turned is over after this share of the run at the latest."""

Values = Mapping[str, float]
Need = Literal["faults", "redis"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One button. `needs`: what the bench must be able to switch for it."""

    name: str
    title: str
    caption: str
    watch: tuple[str, ...]
    sliders: tuple[Slider, ...]
    plan: Callable[[Values], Plan]
    needs: Need | None = None


def load(name: str) -> Scenario:
    """A scenario that ships, as the console plays it. Raises LabError."""
    path = model.find(name)
    told = model.parse(unjudged(for_stage(model.load_raw(path), "console", name)), name=path.name, folder=path.parent)
    turns = told.stages["console"].sliders if "console" in told.stages else ()
    if not turns:
        raise LabError(f"{path.name}: the console plays what has sliders under stages.console.")
    broken = any(workers.failures for workers in told.workers)
    return Scenario(
        name, told.title, " ".join(told.about.split()), told.watch, tuple(map(slider, turns)),
        partial(plan_of, told, turns), "faults" if broken else "redis" if told.cache_silent else None,
    )  # fmt: skip


def plan_of(told: model.Scenario, turns: Sequence[Turn], values: Values) -> Plan:
    """The file with its sliders at these values; where a slider is not named, the file's own. Raises LabError."""
    at = _clock(told, values)
    intensity = next((turn for turn in turns if turn.name == "intensity" and "intensity" in values), None)
    return Plan(
        at(told.duration_s),
        tuple(Load(group.name, tuple(_steps(told, group, intensity, values, at))) for group in told.tenants),
        tuple(Chapter(at(window.from_s), window.name.replace("_", " ")) for window in told.windows),
        _question(told.tenants[0]),
        _manners(told, values),
        tuple(_troubles(told, values, at)),
    )


Clock = Callable[[float], float]


def _clock(told: model.Scenario, values: Values) -> Clock:
    """From the file's seconds to the run's: all in proportion, but for the end of an outage whose length is turned."""
    seconds = values.get("seconds", told.duration_s)
    pace = seconds / told.duration_s
    outage = next((failure for workers in told.workers for failure in workers.failures), None)
    if outage is None or "outage_s" not in values:
        return lambda second: second * pace
    ends_at, moved = outage.until_s, min(outage.from_s * pace + values["outage_s"], LATEST_END * seconds)
    return lambda second: moved if second == ends_at else second * pace


def _steps(told: model.Scenario, group: TenantGroup, turn: Turn | None, values: Values, at: Clock) -> Iterator[Step]:
    """Its multiple of capacity from each second on at which it changes."""
    arrivals = _poisson(group)
    usual, window = _usual(group), next((one for one in told.windows if turn and one.name == turn.during), None)
    factor = None
    if turn is not None and (not turn.of or group.name in turn.of):
        factor = values["intensity"] / sum(_usual(one) for one in told.tenants if not turn.of or one.name in turn.of)
    base = usual if factor is None or window is not None else usual * factor
    changes = {0.0: base} | {phase.until_s: base for phase in arrivals.phases}
    for phase in arrivals.phases:  # one that begins where another ends counts
        turned = window is not None and phase.from_s == window.from_s
        changes[phase.from_s] = usual * factor if factor is not None and turned else base * phase.times
    yield from (Step(at(from_s), times) for from_s, times in sorted(changes.items()) if from_s < told.duration_s)


def _usual(group: TenantGroup) -> float:
    load = _poisson(group).load
    if load is None:
        raise LabError(f"tenants.{group.name}.arrivals: the console knows capacity alone: write load.")
    return load


def _poisson(group: TenantGroup) -> Poisson:
    if not isinstance(group.arrivals, Poisson) or group.count != 1:
        raise LabError(f"tenants.{group.name}: the console plays single tenants with poisson arrivals.")
    return group.arrivals


def _question(group: TenantGroup) -> Question:
    """What everybody asks."""
    prompt, context = (_number(each, group.name) for each in (group.prompt_tokens, group.context_tokens))
    return Question("ask" if group.ask == 1 else "chat", round(prompt + context), group.max_tokens)


def _manners(told: model.Scenario, values: Values) -> Manners:
    """Everybody's: a file whose tenants differ is none for the console."""
    ways = {(_number(one.deadline_s, one.name), _patience(one), one.retries) for one in told.tenants}
    if len({repr(way) for way in ways}) != 1:
        raise LabError("tenants: for the console, all have the same deadline, patience and retries.")
    ((usual_s, patience_s, retries),) = ways
    deadline_s = values.get("deadline_ms", 1000 * usual_s) / 1000
    return Manners(
        deadline_s,
        patience_s=deadline_s * patience_s / usual_s,
        leaving_share=values.get("leaving", 0.0) / 100,
        retries=int(values.get("retries", retries.attempts)),
        obeys_hints=bool(values.get("obey_hints", retries.wait == "hint")),
    )


def _patience(group: TenantGroup) -> float:
    return _number(group.patience_s or group.deadline_s, group.name)


def _troubles(told: model.Scenario, values: Values, at: Clock) -> Iterator[Trouble]:
    for failure in (failure for workers in told.workers for failure in workers.failures):
        if failure.kind != "slow" or failure.workers not in (None, 1):
            raise LabError("workers.failures: the console slows one worker, or all of them.")
        kind: Literal["all_workers", "one_worker"] = "all_workers" if failure.workers is None else "one_worker"
        yield Trouble(kind, at(failure.from_s), at(failure.until_s), values.get("slow_factor", failure.factor))
    yield from (Trouble("cache", at(silence.from_s), at(silence.until_s)) for silence in told.cache_silent)


def _number(distribution: Distribution, name: str) -> float:
    if not isinstance(distribution, Constant):
        raise LabError(f"tenants.{name}: for the console, lengths and times are numbers.")
    return distribution.value


SCENARIOS: Mapping[str, Scenario] = {name: load(name) for name in BUTTONS}
