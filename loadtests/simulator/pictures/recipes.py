"""Which runs make a picture, and what is looked at in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadtests.scenarios.changes import Changes, changed
from loadtests.scenarios.model import Scenario, find, load_raw, parse
from loadtests.simulator import figures
from loadtests.simulator.charts import Bars, Chart, Curve, Panels
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.results import Cell, Comparison, compare
from loadtests.simulator.runs import execute, plan

WITHOUT = "{policy: weir, label: %s, settings: {%s: false}}"


@dataclass(frozen=True, slots=True)
class Runs:
    """A scenario that ships, and what is changed in it: the arguments of `weir simulate`."""

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
        path = find(self.scenario)
        changes = Changes(loads=self.loads, duration_s=self.duration_s, sets=self._all_sets)
        return parse(changed(load_raw(path), changes), name=self.scenario, folder=path.parent)

    def make(self, jobs: int) -> Comparison:
        scenario = self.read()
        return compare(self.scenario, scenario, execute(plan(scenario), jobs, lambda size, done: None))


Drawable = Chart | Panels | Bars
Look = Callable[[Comparison], Drawable]


@dataclass(frozen=True, slots=True)
class Picture:
    """Runs, what is looked at in them, and perhaps fewer policies than were run."""

    runs: Runs
    look: Look
    only: frozenset[str] = field(default_factory=frozenset)
    quoted: tuple[str, ...] = ()
    """Columns that a page quotes, for Weir with and without."""

    def chart(self, comparison: Comparison) -> Drawable:
        cells = tuple(cell for cell in comparison.cells if not self.only or cell.policy in self.only)
        return self.look(replace(comparison, cells=cells))


# ---- what is looked at


def standard(name: str, question: str = "") -> Look:
    """One of the simulator's own charts, perhaps with a question of its own."""

    def look(comparison: Comparison) -> Drawable:
        chart = next(each for each in figures.charts(comparison) if each.name == name)
        return replace(chart, question=question) if question else chart

    return look


def dropped(comparison: Comparison) -> Chart:
    """Broken promises: of those let in, how many are dropped in the queue."""
    base = next(chart for chart in figures.over_load(comparison) if isinstance(chart, Chart))
    loads = tuple(load for load in comparison.loads if load is not None)
    return replace(
        base,
        name="dropped",
        question="Of those who were let in, how many were dropped in the queue?",
        y_label="dropped after admission, percent",
        curves=tuple(Curve(policy, loads, _percent(comparison.of(policy))) for policy in comparison.policies),
        ideal=None,
    )


def _percent(cells: Sequence[Cell]) -> tuple[float | None, ...]:
    shares = [cell.mean(lambda report: report.dropped_after_admission_share) for cell in cells]
    return tuple(None if share is None else 100 * share for share in shares)


def levels(comparison: Comparison) -> Chart:
    """What the ladder did, over time."""
    base = next(chart for chart in figures.charts(comparison) if isinstance(chart, Chart))
    cells = comparison.at(comparison.loads[-1])
    bucket_s = cells[0].reports[0].series.bucket_s
    curves = []
    for cell in cells:
        worth = _worth_per_s(cell.reports[0])
        xs = tuple((place + 0.5) * bucket_s for place in range(len(worth)))
        curves.append(Curve(cell.policy, xs, figures.smoothed(worth)))
    return replace(
        base,
        name="worth",
        question="Does it pay to answer less well rather than not at all?",
        note=f"{base.note}; answers on time count for what their level is worth: 1, .9, .8, .65, .5",
        y_label="answers on time per second, times their worth",
        curves=tuple(curves),
        levels=(),
    )


def _worth_per_s(report: PolicyReport) -> Sequence[float]:
    """Answers on time, each by the worth of the level that was in force."""
    quality, series = (1.0, 0.9, 0.8, 0.65, 0.5), report.series
    return [
        answers * quality[min(level, len(quality) - 1)] / series.bucket_s
        for answers, level in zip(series.on_time, series.level, strict=True)
    ]


# ---- the pictures

SWEEP = Runs(
    "sweep",
    ("weir", WITHOUT % ("weir_without", "standing_queue"), "vtc", "round_robin_ttl_cancel", "fifo_ttl", "fifo"),
    loads=(0.5, 0.85, 1, 1.2, 2, 3, 5, 10),
)
LADDER = Runs("ladder", ("weir", "{policy: weir, label: weir_without_ladder, max_level: 0}", "round_robin_ttl_cancel"))
PICTURES = {
    "goodput": Picture(
        SWEEP, standard("goodput"), frozenset({"weir", "vtc", "round_robin_ttl_cancel", "fifo_ttl", "fifo"})
    ),
    "standing-queue": Picture(
        SWEEP,
        standard("wait", "How long do those wait who are let in, if a queue may stand and if not?"),
        frozenset({"weir", "weir_without", "fifo_ttl"}),
        quoted=("on time of cap.", "wait p50 ms", "wait p95 ms"),
    ),
    "true-up": Picture(
        Runs(
            "long_against_short",
            ("weir", WITHOUT % ("without true-up", "true_up"), "vtc", "round_robin_ttl_cancel"),
        ),
        standard("service", "Half of the work is each tenant's fair share: who gets it?"),
        frozenset({"weir", "without true-up", "round_robin_ttl_cancel"}),
    ),
    "measured-rounds": Picture(
        Runs(
            "many_tenants",
            ("weir", WITHOUT % ("weir_without", "measured_rounds")),
            loads=(1.2, 2, 3, 5, 10),
            duration_s=16,
        ),
        dropped,
        quoted=("dropped", "on time of cap.", "refused"),
    ),
    "long-prompts": Picture(
        Runs(
            "long_prompts",
            ("weir", WITHOUT % ("weir_without", "reading_line"), "vtc", "fifo_ttl"),
            loads=(0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10),
            sets=("sweep.tenants=[]",),
        ),
        standard("goodput", "Long prompts and short deadlines: how much is answered in time?"),
        quoted=("on time of cap.", "wasted", "refused", "dropped"),
    ),
    "retry-storm": Picture(
        Runs("retry_storm", ("weir", "round_robin_ttl_cancel", "round_robin_ttl", "fifo_ttl", "fifo")),
        standard("recovery"),
    ),
    "ladder": Picture(LADDER, levels),
    "clamp": Picture(
        Runs(
            "unknown_lengths_10x",
            ("weir", "{policy: weir, label: weir_with_clamp, may_clamp: true}", "vtc", "round_robin_ttl_cancel"),
            duration_s=150,
        ),
        standard("waste"),
    ),
    "hints": Picture(Runs("hints", ("weir", "round_robin_ttl_cancel", "bounded_fifo")), standard("recovery")),
    "neighbours": Picture(
        Runs(
            "noisy_neighbour",
            ("weir", "vtc", "round_robin_ttl_cancel", "fifo_ttl", "fifo"),
            loads=(0.01, 0.5, 1, 3, 10),
        ),
        standard("neighbours-latency"),
    ),
}


TABLES = {
    "true-up, clients leave": Runs(
        "long_against_short",
        ("weir", WITHOUT % ("weir_without", "true_up")),
        duration_s=100,
        sets=("tenants.long.patience_s={kind: uniform, low: 0.1, high: 1.5}",),
    ),
    "a quiet day": Runs("steady", ("weir", "vtc", "round_robin_ttl_cancel", "fifo")),
    "a big neighbour": Runs("big_neighbour", ("weir", "vtc", "round_robin_ttl_cancel"), loads=(0.01, 10)),
}
"""Figures that a page quotes, without a picture."""
