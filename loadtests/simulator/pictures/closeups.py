"""Pictures and tables outside the comparison: predictions, the estimate of capacity, ways to a quantile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from matplotlib.figure import Figure

from loadtests.report import style
from loadtests.scenarios.model import Failure, Scenario
from loadtests.simulator import capacity, engine, plots
from loadtests.simulator.job import Job
from loadtests.simulator.pictures.recipes import Runs
from loadtests.simulator.plots import Curve, Panel, Panels, Shape
from loadtests.simulator.policies.weir import WeirPolicy
from services.core.calibration import PUBLISHED
from services.core.quantile import Rolling

# ---- were predictions right?

MIXES = {
    "four equal tenants, 3x": Runs("sweep", loads=(3,), duration_s=60),
    "a burst of 10x": Runs("burst"),
    "300 ms beside 3 s": Runs("mixed_deadlines"),
    "300 tenants, 3x": Runs("many_tenants", loads=(3,), duration_s=16),
    "a neighbour ten times bigger": Runs("big_neighbour", loads=(10,)),
    "unknown lengths, 10x": Runs("unknown_lengths_10x", duration_s=150),
}


@dataclass(frozen=True, slots=True)
class Covered(Shape):
    """Shares of the waits within each published quantile, a row per mix."""

    shares: Mapping[str, Sequence[float]]

    def draw(self, theme: style.Theme) -> Figure:
        figure, (axes,) = style.sheet(left=0.3, right=0.96, height_in=1.75 + 0.38 * len(self.shares))
        style.headline(figure, theme, self.question, self.note)
        for q, color in zip(PUBLISHED, theme.tenants, strict=False):
            axes.axvspan(100 * q - 3, 100 * q + 3, color=color, alpha=0.13, linewidth=0)
            axes.axvline(100 * q, color=color, linewidth=1, linestyle=plots.DOTS)
            axes.text(100 * q, -0.72, f"q{100 * q:.0f}", color=color, ha="center", va="bottom", fontsize=style.SMALL_PT)
        for row, shares in enumerate(self.shares.values()):
            for share, color in zip(shares, theme.tenants, strict=False):
                axes.plot(100 * share, row, "o", color=color, markersize=7, clip_on=False)
        axes.set_yticks(range(len(self.shares)), list(self.shares), fontsize=style.SMALL_PT + 0.5)
        axes.tick_params(axis="y", length=0, pad=6, labelcolor=theme.ink)
        axes.set_ylim(len(self.shares) - 0.5, -0.8)
        axes.set_xlim(40, 100)
        axes.set_xlabel(self.x_label)
        return figure


def coverage(jobs: int) -> tuple[Shape, list[Sequence[str]]]:
    """The share of waits within each predicted quantile, by mix."""
    shares: dict[str, list[float]] = {}
    rows: list[Sequence[str]] = [("mix", "waits", *(f"within q{100 * q:.0f}" for q in PUBLISHED), "command")]
    for name, runs in MIXES.items():
        coverages = [report.coverage for report in runs.make(jobs).cells[0].reports if report.coverage]
        waits = sum(each.count for each in coverages)
        shares[name] = [sum(each.shares[q] * each.count for each in coverages) / waits for q in PUBLISHED]
        percents = (f"{100 * share:.1f}%" for share in shares[name])
        rows.append((name, f"{waits:,}", *percents, f"{runs.command} --json"))
    drawn = Covered(
        name="coverage",
        question="Were the predicted waits right as often as they said?",
        note="A dot is the share of waits that were within the prediction; the band is 3 points either way. "
        "Virtual time.",
        x_label="waits within the prediction, percent",
        shares=shares,
    )
    return drawn, rows


# ---- the estimate of capacity

LOOKED_AT_S = (19, 22, 25, 30, 35, 39, 42, 45, 49, 52, 60)


def rate(jobs: int) -> tuple[Shape, list[Sequence[str]]]:
    """The estimate of capacity while a worker is down, and while one is slow."""
    lost, slow = (Runs(name, duration_s=90).read() for name in ("outage", "slow_worker"))
    chart = Panels(
        name="rate",
        question="How soon does the estimate of capacity follow?",
        note="outage and slow_worker: 16 slots, 75 % load, virtual time, seed 1. The grey band is the difference.",
        x_label="time, seconds",
        y_label="work per second, share of what it was",
        panels=(_rate("one worker of two is lost", lost), _rate("one worker of two is slow", slow)),
    )
    rows: list[Sequence[str]] = [("scenario", "at", "estimate", "truth")]
    for panel in chart.panels:
        estimate, truth = panel.curves
        places = {at: estimate.xs.index(float(at)) for at in LOOKED_AT_S}
        rows += [(panel.policy, f"{at} s", *(f"{curve.ys[place]:.2f}" for curve in (estimate, truth)))
                 for at, place in places.items()]  # fmt: skip
    return chart, rows


def _rate(title: str, scenario: Scenario) -> Panel:
    measured = capacity.measure(scenario)
    simulation = engine.prepare(scenario, scenario.policies[0], measured)
    policy = simulation.policy
    assert isinstance(policy, WeirPolicy)
    failures = [(failure, group.count) for group in scenario.workers for failure in group.failures]
    seen: list[tuple[float, float, float]] = []

    def watch(now: float) -> None:
        estimate = policy.scheduler.pools["default"].estimator.rate or 0.0
        truth = 1.0 - sum(_lost(failure, count, now) for failure, count in failures)
        seen.append((round(now, 3), estimate / measured.capacity.cost_per_s, truth))

    simulation.watch = watch
    simulation.run_until(scenario.duration_s)
    times, estimates, truths = zip(*seen, strict=True)
    return Panel(title, (Curve("estimate", times, estimates), Curve("truth", times, truths)), "")


def _lost(failure: Failure, count: int, now: float) -> float:
    """The share of capacity that a failure takes at `now`."""
    if not failure.from_s <= now < failure.until_s:
        return 0.0
    part = (failure.workers or count) / count
    return part if failure.kind == "down" else part * (1 - 1 / failure.factor)


# ---- added or multiplied errors

Q = 0.95
WINDOW = 200
ENOUGH = 20
MIN_PREDICTION_S = 0.04
"""Half a service time of the small requests; ratios to smaller predictions are ignored."""


class Start(NamedTuple):
    at: float
    tenant: str
    expected_s: float
    published_s: float
    waited_s: float

    @property
    def error_s(self) -> float:
        return self.waited_s - self.expected_s

    def ratio(self, min_s: float) -> float | None:
        """Wait over prediction; None for a prediction below `min_s`."""
        return self.waited_s / self.expected_s if self.expected_s >= max(min_s, 1e-12) else None


@dataclass(slots=True)
class Result:
    """Results of a way to a q95: the predictions, and how many waits were within."""

    predicted_s: list[float] = field(default_factory=list)
    within: int = 0

    def add(self, predicted_s: float, start: Start) -> None:
        self.predicted_s.append(predicted_s)
        self.within += start.waited_s <= predicted_s

    def __str__(self) -> str:
        count = len(self.predicted_s)
        return f"{self.within / count:.1%}, {1000 * sum(self.predicted_s) / count:,.0f} ms"


class Way(NamedTuple):
    """A way to a q95: the group that shares errors, the error, and the prediction from the q95 of past errors."""

    key: Callable[[Start], str]
    error: Callable[[Start], float | None]
    predict: Callable[[Start, float | None], float]

    def run(self, starts: Sequence[Start], group: str) -> Result:
        """Learns from all requests; the result is of tenants whose names begin with `group`."""
        result, windows = Result(), dict[str, Rolling]()
        for start in starts:
            window = windows.setdefault(self.key(start), Rolling(WINDOW))
            if len(window) >= ENOUGH and start.tenant.startswith(group):
                result.add(self.predict(start, window.quantile(Q)), start)
            if (error := self.error(start)) is not None:
                window.add(error)
        return result


def _plus(start: Start, error_s: float | None) -> float:
    return max(0.0, start.expected_s + (error_s or 0.0))


WAYS: Mapping[str, Way] = {
    "times a ratio between 1 and 3, of the class": Way(
        lambda start: "",
        lambda start: start.ratio(MIN_PREDICTION_S),
        lambda start, ratio: start.expected_s * min(3.0, max(1.0, ratio or 1.0)),
    ),
    "times a ratio, of the tenant": Way(
        lambda start: start.tenant,
        lambda start: start.ratio(0.0),
        lambda start, ratio: start.expected_s * (ratio or 1.0),
    ),
    "plus an error, of the class": Way(lambda start: "", lambda start: start.error_s, _plus),
    "plus an error, of the tenant": Way(lambda start: start.tenant, lambda start: start.error_s, _plus),
}
LEARNED = {
    "the small beside ten times bigger requests": (Runs("big_neighbour", loads=(10,)), "small"),
    "four equal tenants, 3x": (Runs("sweep", loads=(3,), duration_s=60), "tenant"),
    "the light of unknown lengths, 10x": (Runs("unknown_lengths_10x", duration_s=300), "light"),
}


def ways(jobs: int) -> tuple[None, list[Sequence[str]]]:
    """Coverage and mean of the q95 by four ways from the same predictions and waits, and by Weir's.

    Weir's also learns from expired requests. A good q95 covers 95 % and is short.
    """
    columns: list[list[str]] = []
    for runs, group in LEARNED.values():
        starts, ours = _starts(runs), Result()
        for start in starts:
            if start.tenant.startswith(group):
                ours.add(start.published_s, start)
        columns.append([str(each) for each in (*(way.run(starts, group) for way in WAYS.values()), ours)])
    names = (*WAYS, "plus an error of the tenant and kind, at a level that moves (Weir)")
    return None, [("q95 of the wait = the expected wait ...", *LEARNED), *zip(names, *columns, strict=True)]


def _starts(runs: Runs) -> list[Start]:
    scenario = runs.read()
    if scenario.sweep:
        scenario = scenario.at_load(scenario.sweep.loads[0])
    starts: list[Start] = []

    def ended(now: float, job: Job, why: str) -> None:
        if job.started_at > 0:
            waited_s = job.started_at - job.arrived_at
            starts.append(Start(job.started_at, job.tenant, job.predicted_wait_s, job.forecast[-1], waited_s))

    engine.run(scenario.with_seed(scenario.runs[0]), scenario.policies[0], ended=ended)
    return sorted(starts, key=lambda start: start.at)
