"""The scenarios of the bench `ablation`, as they are played: shortened, at every load, with every seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from loadtests.scenarios.arrivals import Closed, Trace
from loadtests.scenarios.changes import missing_trace
from loadtests.scenarios.model import Scenario, find, load_raw, names, parse
from loadtests.scenarios.stages import for_stage
from loadtests.simulator import engine, promises
from loadtests.simulator.capacity import measure as capacity_of
from loadtests.simulator.readings import READ, mean_known, members, share_on_time
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.results import compare, loads
from loadtests.simulator.runs import Run
from loadtests.simulator.targets import targets
from services.cli.errors import LabError

CHOICES = ("weir", "weir_with_clamp")
WARM_UP_S, COUNTED_S, COOL_DOWN_S = 2.0, 2.0, 1.0
"""Of a steady run that is shortened: the warm-up at most, and how long at least its requests count."""
FIRST = ("long_prompts", "mixed_deadlines", "mixed_sizes", "many_tenants", "slow_worker", "steps_overload", "bursty")
PROMISES = "the promises"
LARGE = 8000
"""Requests of a run from which on one seed is enough."""


class Options(msgspec.Struct, frozen=True):
    """What is played."""

    seeds: Annotated[int, msgspec.Meta(ge=1, le=100, description="how many seeds, counted up from 1")] = 3
    offers: Annotated[
        int, msgspec.Meta(ge=10, description="a steady run is shortened to about so many requests, or 2 s that count")
    ] = 5000
    scenario: Annotated[tuple[str, ...], msgspec.Meta(description="only this one; repeatable")] = ()
    only: Annotated[tuple[str, ...], msgspec.Meta(description="only this refinement; repeatable")] = ()
    whole: Annotated[bool, msgspec.Meta(description="play on where a refinement has shown its worth")] = False
    promises: Annotated[bool, msgspec.Meta(description="judge by the promises of the simulator, too; slow")] = False


Read = Mapping[str, float | None]
Played = Mapping[str, Sequence[Read]]
"""By scenario, load and policy: the figures of each seed."""


class Found(NamedTuple):
    """What was played once: with all refinements, or without one."""

    played: Played
    promises: Mapping[str, bool]
    """By name, whether it held."""

    def and_of(self, other: Found) -> Found:
        """Both together."""
        return Found({**self.played, **other.played}, {**self.promises, **other.promises})


def play(name: str, scenario: Scenario | None, options: Options, settings: Mapping[str, object]) -> Found:
    """One scenario, at every load, with every seed; or the promises."""
    if scenario is None:
        return Found({}, kept(options.seeds, settings))
    played, reports = {}, []
    for load in loads(scenario):
        here = shortened(scenario if load is None else scenario.at_load(load), options.offers)
        here = here.model_copy(update={"weir": {**here.weir, **settings}})
        measured = capacity_of(here)
        for choice in here.policies:
            seeds = 1 if Run(here, choice, load).size * measured.capacity.requests_per_s > LARGE else options.seeds
            runs = [engine.run(here.with_seed(1 + at), choice, load=load, measured=measured) for at in range(seeds)]
            where = f"{name}{f' {load:g}x' if load else ''}{f', {choice.label}' if choice.label else ''}"
            played[where] = [figures_of(here, run) for run in runs]
            reports += runs
    return Found(
        played,
        {f"{name}: {each.name}": bool(each.held) for each in targets(compare(name, scenario, reports))},
    )


def scenarios(options: Options) -> Iterator[tuple[str, Scenario]]:
    """Those that the simulator can play with what ships; those that say much at little cost first."""
    for name in options.scenario or dict.fromkeys((*FIRST, *names())):
        path = find(name)
        try:
            raw = for_stage(load_raw(path), "simulator", name)
        except LabError:
            continue
        if missing_trace(raw, path.parent) is None:
            scenario = parse(raw, name=path.name, folder=path.parent)
            chosen = tuple(choice for choice in scenario.policies if choice.name in CHOICES)
            yield name, scenario.model_copy(update={"policies": chosen})


def shortened(scenario: Scenario, offers: int) -> Scenario:
    """A run in which nothing changes needs to last only until enough has been asked."""
    arrivals = [group.arrivals for group in scenario.tenants]
    steady = not any(isinstance(each, Closed | Trace) or each.phases for each in arrivals)
    if not steady or any(group.failures for group in scenario.workers):
        return scenario
    per_s = sum(capacity_of(scenario).rates.values())
    warm_up_s = min(scenario.warm_up_s, WARM_UP_S * max(1.0, capacity_of(scenario).capacity.service_s))
    duration_s = max(warm_up_s + COUNTED_S + COOL_DOWN_S, offers / per_s)
    changed = {"duration_s": duration_s, "warm_up_s": warm_up_s, "cool_down_s": COOL_DOWN_S}
    return scenario.model_copy(update=changed) if duration_s < scenario.duration_s else scenario


def figures_of(scenario: Scenario, report: PolicyReport) -> Read:
    """What is compared, of one run."""
    found: dict[str, float | None] = {
        name: READ[name](report) for name in ("goodput", "on_time", "dropped", "wait_p95_s", "latency_p95_s")
    }
    found["p95 of first tokens"] = report.first_token_s.p95
    for group in scenario.tenants if len(scenario.tenants) > 1 else ():
        those = members(report, group)
        found[f"on_time, {group.name}"] = share_on_time(those)
        found[f"p95, {group.name}"] = mean_known(each.latency_s.p95 for each in those)
    return found


def kept(seeds: int, settings: Mapping[str, object]) -> dict[str, bool]:
    """Which promises hold of Weir alone: those that compare it with other policies are left out."""
    made = promises.table()

    def played(case: promises.Case, policy: str) -> promises.Values:
        scenarios = [case.at(seed) for seed in range(1, seeds + 1)]
        without = [each.model_copy(update={"weir": {**each.weir, **settings}}) for each in scenarios]
        lines = made.lines(case.name)
        runs = [Run(each, promises.CHOICES[policy], None) for each in without]
        return promises.by_figure([promises.values_of(lines, run) for run in runs])

    values = {
        case.name: {name: played(case, name) for name in case.compared if name.startswith("weir")}
        for case in made.cases
    }
    figures = [each.figure(values) for row in made.promises for each in made.of(row)]
    return {each.name: each.held for each in figures if each.held is not None}
