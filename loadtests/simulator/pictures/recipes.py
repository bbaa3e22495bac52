"""The runs and the plot of each picture, from `recipes.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import yaml

from loadtests.scenarios.changes import Changes, changed
from loadtests.scenarios.model import Scenario, find, load_raw, parse
from loadtests.simulator import figures
from loadtests.simulator.plots import Chart, Curve, Shape
from loadtests.simulator.readings import READ
from loadtests.simulator.results import Cell, Comparison, compare
from loadtests.simulator.runs import execute, plan

QUALITY = (1.0, 0.9, 0.8, 0.65, 0.5)


class Runs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario and its changes, as the arguments of `weir simulate`."""

    scenario: str
    policies: tuple[str, ...] = ("weir",)
    """As YAML."""
    loads: tuple[float, ...] = ()
    duration_s: float | None = None
    sets: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        parts = ["weir simulate", self.scenario]
        parts += [f"--load {load:g}" for load in self.loads]
        parts += [f"--duration {self.duration_s:g}"] if self.duration_s else []
        return " ".join([*parts, *(f"--set '{each}'" for each in self._all_sets)])

    @property
    def _all_sets(self) -> tuple[str, ...]:
        return (f"policies=[{', '.join(self.policies)}]", *self.sets)

    def read(self) -> Scenario:
        """The scenario. Raises LabError if it is invalid."""
        path = find(self.scenario)
        changes = Changes(loads=self.loads, duration_s=self.duration_s, sets=self._all_sets)
        return parse(changed(load_raw(path), changes), name=self.scenario, folder=path.parent)

    def make(self, jobs: int) -> Comparison:
        scenario = self.read()
        return compare(self.scenario, scenario, execute(plan(scenario), jobs))


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See recipes.yaml."""

    runs: Runs
    look: str = ""
    question: str = ""
    only: tuple[str, ...] = ()

    def chart(self, comparison: Comparison) -> Shape:
        """The plot. Raises KeyError if these runs do not have it."""
        cells = tuple(cell for cell in comparison.cells if not self.only or cell.policy in self.only)
        shown = replace(comparison, cells=cells)
        if self.look in LOOKS:
            return LOOKS[self.look](shown)
        chart = {chart.name: chart for chart in figures.charts(shown)}[self.look]
        return replace(chart, question=self.question) if self.question else chart


def dropped(comparison: Comparison) -> Chart:
    """The share of admitted attempts that were dropped from the queue, in percent."""

    def percent(cell: Cell) -> float | None:
        share = cell.mean(READ["dropped"])
        return None if share is None else 100 * share

    base = next(figures.over_load(comparison))
    return replace(
        base,
        name="dropped",
        question="Of those who were let in, how many were dropped in the queue?",
        y_label="dropped after admission, percent",
        curves=tuple(
            curve._replace(ys=tuple(percent(cell) for cell in comparison.of(curve.label))) for curve in base.curves
        ),
        ideal=None,
    )


def worth(comparison: Comparison) -> Chart:
    """Answers on time per second, weighed by the quality of the level in force."""
    base = next(chart for chart in figures.charts(comparison) if isinstance(chart, Chart))
    return replace(
        base,
        name="worth",
        question="Does it pay to answer less well rather than not at all?",
        note=f"{base.note}; answers on time count for what their level is worth: 1, .9, .8, .65, .5",
        y_label="answers on time per second, times their worth",
        curves=tuple(_worth(cell) for cell in comparison.at(comparison.loads[-1])),
        levels=(),
    )


def _worth(cell: Cell) -> Curve:
    series = cell.reports[0].series
    worth_per_s = [
        answers * QUALITY[min(level, len(QUALITY) - 1)] / series.bucket_s
        for answers, level in zip(series.on_time, series.level, strict=True)
    ]
    return figures.over_buckets(cell, figures.smoothed(worth_per_s))


LOOKS: Mapping[str, Callable[[Comparison], Shape]] = {"dropped": dropped, "worth": worth}
RECIPES: dict[str, Recipe] = msgspec.convert(
    yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text(encoding="utf-8")), dict[str, Recipe]
)
