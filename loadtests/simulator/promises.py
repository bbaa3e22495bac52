"""The targets of promises.yaml: parsed, run with every policy, and judged by the worst seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadtests.report.figure import Figure, formatted
from loadtests.scenarios.changes import Changes, changed
from loadtests.scenarios.model import PolicyChoice, Scenario, find, load_raw, parse
from loadtests.simulator.engine import Progress
from loadtests.simulator.metrics import Metric, metric
from loadtests.simulator.runs import Run, spread
from loadtests.simulator.watching import watched

SEEDS = (1, 2, 3, 4)
OTHERS = ("fifo", "bounded_fifo", "fifo_ttl", "round_robin_ttl", "round_robin_ttl_cancel", "vtc")
ALL = ("weir", *OTHERS)
NAMED = {"all": ALL, "others": OTHERS}
CHOICES: Mapping[str, PolicyChoice] = {
    **{name: PolicyChoice(policy=name) for name in ALL},  # type: ignore[arg-type]  # a name is a policy's
    "weir_with_clamp": PolicyChoice(policy="weir", label="weir_with_clamp", may_clamp=True),
    "weir_without_ladder": PolicyChoice(policy="weir", label="weir_without_ladder", max_level=0),
    "weir_uncut": PolicyChoice(policy="weir", label="weir_uncut", max_level=0, may_clamp=False),
}
COUNTED = ("warm_up_s=3", "cool_down_s=3")
TABLE = Path(__file__).with_name("promises.yaml")
REPLAYED_S = 600.0

Values = dict[str, list[float | None]]
"""By figure, a value per seed."""
Played = Mapping[str, Mapping[str, Values]]
"""By case and policy."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario with changes, and the policies to run in it."""

    name: str
    scenario: str
    duration_s: float
    load: float | None = None
    sets: tuple[str, ...] = ()
    """Changes in the form of `--set`."""
    without: tuple[str, ...] = ()
    """Groups of tenants to leave out."""
    policies: tuple[str, ...] = ("all",)
    trace: str | None = None

    @property
    def compared(self) -> list[str]:
        return [name for each in self.policies for name in NAMED.get(each, (each,))]

    def at(self, seed: int) -> Scenario:
        sets = (*COUNTED, f"duration_s={self.duration_s:g}", *self.sets)
        path = find(self.scenario)
        raw = changed(load_raw(path), Changes(sets=sets, trace=Path(self.trace) if self.trace else None))
        scenario = parse(raw, name=self.name, folder=path.parent)
        if self.load is not None:
            scenario = scenario.at_load(self.load)
        present = tuple(group for group in scenario.tenants if group.name not in self.without)
        return scenario.model_copy(update={"tenants": present, "sweep": None}).with_seed(seed)

    @property
    def command(self) -> str:
        """The command that runs it, except for `without`."""
        parts = ["weir simulate", self.scenario, f"--duration {self.duration_s:g}"]
        parts += [f"--load {self.load:g}"] if self.load is not None else []
        parts += [f"--trace {Path(self.trace).name}"] if self.trace is not None else []
        return " ".join([*parts, *(f"--set '{each}'" for each in self.sets)])


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure with its bound, for several cases and policies. promises.yaml explains the fields."""

    figure: str
    cases: tuple[str, ...]
    of: str | None = None
    given: dict[str, Any] = {}
    judged: tuple[str, ...] = ("weir",)
    worst: bool = False
    less: str | None = None
    over: str | None = None
    over_policy: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    higher: bool = False

    @property
    def metric(self) -> Metric:
        return metric(self.figure, self.of)

    @property
    def key(self) -> str:
        words = [self.figure, *([f"of={self.of}"] if self.of else []), *(f"{k}={v}" for k, v in self.given.items())]
        return " ".join(words)

    @property
    def compares(self) -> bool:
        """Whether it is relative to another case or policy."""
        return bool(self.less or self.over or self.over_policy)

    @property
    def wants_high(self) -> bool:
        """Whether the lowest value is the worst."""
        return self.higher or self.at_least is not None


@dataclass(frozen=True, slots=True)
class Promise:
    """One figure of the page: a line, its cases, and the policy that is judged."""

    line: Line
    cases: tuple[str, ...]
    judged: str

    @property
    def read(self) -> list[str]:
        return [*self.cases, *(each for each in (self.line.less, self.line.over) if each)]

    @property
    def name(self) -> str:
        line = self.line
        of = f"the worst of {', '.join(line.cases)}" if line.worst else self.cases[0]
        compared = f" less {line.less}" if line.less else f" / {line.over or line.over_policy}"
        who = f", {self.judged}" if self.judged != "weir" else ""
        return f"{line.metric.words.format(**line.given)}, {of}{compared if line.compares else ''}{who}"

    @property
    def unit(self) -> str:
        """Empty for quotients."""
        return "" if self.line.over or self.line.over_policy else self.line.metric.unit

    def values(self, played: Played, policy: str) -> list[float]:
        """A value per seed; fewer where a seed has none."""
        line = self.line
        found = [values for case in self.cases if (values := self._of(played, case, policy))]
        mine = [max((value for value in seed if value is not None), default=None) for seed in zip(*found, strict=True)]
        if not line.compares:
            return [value for value in mine if value is not None]
        other = self._of(played, line.less or line.over or self.cases[0], line.over_policy or policy)
        pairs = [(a, b) for a, b in zip(mine, other, strict=False) if a is not None and b is not None]
        return [a - b for a, b in pairs] if line.less else [a / b for a, b in pairs if b]

    def _of(self, played: Played, case: str, policy: str) -> list[float | None]:
        return played.get(case, {}).get(policy, {}).get(self.line.key, [])

    def worst(self, values: Sequence[float]) -> float:
        """The worst seed's value; NaN without values, which misses every target."""
        return (min if self.line.wants_high else max)(values, default=math.nan)

    def figure(self, played: Played) -> Figure:
        line = self.line
        target = line.at_most if line.at_least is None else line.at_least
        worst = self.worst(self.values(played, self.judged))
        return Figure(self.name, worst, self.unit, target, at_least=line.at_least is not None)

    def formatted(self, played: Played, policy: str) -> str:
        """`MEDIAN (WORST)` of the seeds; one number where both look the same."""
        values = self.values(played, policy)
        if not values:
            return "–"
        middle, far = (formatted(each, self.unit) for each in (statistics.median(values), self.worst(values)))
        return middle if middle == far else f"{middle} ({far})"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of figures and how they are computed."""

    title: str
    how: str
    figures: tuple[Line, ...]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cases: tuple[Case, ...]
    groups: dict[str, tuple[str, ...]]
    promises: tuple[Row, ...]

    def case(self, name: str) -> Case:
        """Raises KeyError for an unknown name."""
        return {case.name: case for case in self.cases}[name]

    def of(self, row: Row) -> Iterator[Promise]:
        for line in row.figures:
            names = tuple(self._cases(line.cases))
            for some in [names] if line.worst else [(name,) for name in names]:
                yield from (Promise(line, some, policy) for policy in line.judged)

    def _cases(self, names: Sequence[str]) -> Iterator[str]:
        for name in names:
            yield from self._cases(self.groups[name]) if name in self.groups else (name,)

    def lines(self, case: str) -> list[Line]:
        """The lines that read this case, one per key."""
        found = {each.line.key: each.line for row in self.promises for each in self.of(row) if case in each.read}
        return list(found.values())

    def also(self, names: Iterable[str]) -> Table:
        """The table with these cases added to the groups `known` and `learned`."""
        more = tuple(names)
        groups = {name: (*of, *more) if name in ("known", "learned") else of for name, of in self.groups.items()}
        return msgspec.structs.replace(self, groups=groups)


def replay(trace: Path) -> Case:
    """Ten minutes of a trace, in the scenario for its format."""
    scenario = "servegen" if "servegen" in trace.name else "azure_code"
    return Case(f"replay of {trace.stem}", scenario, REPLAYED_S, trace=str(trace))


@cache
def table() -> Table:
    return msgspec.convert(yaml.safe_load(TABLE.read_text(encoding="utf-8")), Table)


def play(made: Table, case: Case, jobs: int) -> dict[str, Values]:
    """Run a case with every policy and seed. Returns the values by policy."""
    runs = [Run(case.at(seed), CHOICES[policy], None) for policy in case.compared for seed in SEEDS]
    found = iter(spread(runs, jobs, None, partial(values_of, made.lines(case.name))))
    return {policy: by_figure([next(found) for _ in SEEDS]) for policy in case.compared}


def values_of(lines: Sequence[Line], run: Run, progress: Progress | None = None) -> dict[str, float | None]:
    """The figures of one run."""
    seen = watched(run, progress)
    return {line.key: line.metric.read(seen, **line.given) for line in lines}


def by_figure(seeds: Sequence[Mapping[str, float | None]]) -> Values:
    return {key: [found[key] for found in seeds] for key in seeds[0]}
