"""Pictures of what no comparison shows: how often predictions were right, how soon capacity is known, and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from loadtests.report import style
from loadtests.scenarios.model import Failure, Scenario
from loadtests.simulator import capacity, plots
from loadtests.simulator.charts import Curve, Panel, Panels
from loadtests.simulator.engine import prepare
from loadtests.simulator.pictures import batches
from loadtests.simulator.pictures.recipes import Runs
from loadtests.simulator.policies.weir import WeirPolicy
from services.core.calibration import PUBLISHED

Own = Callable[[style.Theme], Figure]
"""A drawing in a theme."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Traffic whose waits are predicted."""

    name: str
    runs: Runs


MIXES = (
    Mix("four equal tenants, 3x", Runs("sweep", loads=(3,), duration_s=60)),
    Mix("a burst of 10x", Runs("burst")),
    Mix("300 ms beside 3 s", Runs("mixed_deadlines")),
    Mix("300 tenants, 3x", Runs("many_tenants", loads=(3,), duration_s=16)),
    Mix("a neighbour ten times bigger", Runs("big_neighbour", loads=(10,))),
    Mix("unknown lengths, 10x", Runs("unknown_lengths_10x", duration_s=150)),
)


def coverage(jobs: int) -> tuple[Own, str]:
    """How many waits were within what was predicted for 50, 90 and 95 in a hundred, mix by mix."""
    covered: list[tuple[str, int, list[float]]] = []
    for mix in MIXES:
        reports = mix.runs.make(jobs).cells[0].reports
        told = [report.coverage for report in reports if report.coverage]
        waits = sum(each.count for each in told)
        shares = [sum(each.shares[q] * each.count for each in told) / waits for q in PUBLISHED]
        covered.append((mix.name, waits, shares))
    lines = ["| mix | waits | within q50 | within q90 | within q95 |", "|---|---:|---:|---:|---:|"]
    for name, waits, shares in covered:
        lines.append(f"| {name} | {waits:,} | {' | '.join(f'{100 * share:.1f}%' for share in shares)} |")
    commands = [f"- {mix.name}: `{mix.runs.command} --json`" for mix in MIXES]
    return lambda theme: _dots(covered, theme), "\n".join([*lines, "", *commands])


def _dots(covered: Sequence[tuple[str, int, list[float]]], theme: style.Theme) -> Figure:
    figure, (axes,) = style.sheet(left=0.3, right=0.96, height_in=1.75 + 0.38 * len(covered))
    note = "A dot is the share of waits that were within the prediction; the band is 3 points either way. Virtual time."
    style.headline(figure, theme, "Were the predicted waits right as often as they said?", note)
    for q, color in zip(PUBLISHED, theme.tenants, strict=False):
        axes.axvspan(100 * q - 3, 100 * q + 3, color=color, alpha=0.13, linewidth=0)
        axes.axvline(100 * q, color=color, linewidth=1, linestyle=plots.DOTS)
        axes.text(100 * q, -0.72, f"q{100 * q:.0f}", color=color, ha="center", va="bottom", fontsize=style.SMALL_PT)
    for row, (_, _, shares) in enumerate(covered):
        for share, color in zip(shares, theme.tenants, strict=False):
            axes.plot(100 * share, row, "o", color=color, markersize=7, clip_on=False)
    axes.set_yticks(range(len(covered)), [name for name, _, _ in covered], fontsize=style.SMALL_PT + 0.5)
    axes.tick_params(axis="y", length=0, pad=6, labelcolor=theme.ink)
    axes.set_ylim(len(covered) - 0.5, -0.8)
    axes.set_xlim(40, 100)
    axes.set_xlabel("waits within the prediction, percent")
    return figure


def rate(jobs: int) -> tuple[Panels, str]:
    """The estimate of capacity while a worker is lost, and while one is slow."""
    lost, slow = (Runs(name, duration_s=90).read() for name in ("outage", "slow_worker"))
    panels = [_rate("one worker of two is lost", lost), _rate("one worker of two is slow", slow)]
    chart = Panels(
        name="rate",
        question="How soon does the estimate of capacity follow?",
        note="outage and slow_worker: 16 slots, 75 % load, virtual time, seed 1. The grey band is the difference.",
        x_label="time, seconds",
        y_label="work per second, share of what it was",
        panels=tuple(panels),
    )
    lines = ["| scenario | at | estimate | truth |", "|---|---:|---:|---:|"]
    for panel in panels:
        estimate, truth = panel.curves
        for at in (19, 22, 25, 30, 35, 39, 42, 45, 49, 52, 60):
            place = estimate.xs.index(float(at))
            lines.append(f"| {panel.policy} | {at} s | {estimate.ys[place]:.2f} | {truth.ys[place]:.2f} |")
    return chart, "\n".join(lines)


def _rate(title: str, scenario: Scenario) -> Panel:
    measured = capacity.measure(scenario)
    simulation = prepare(scenario, scenario.policies[0], measured)
    policy = simulation.policy
    assert isinstance(policy, WeirPolicy)
    failures = [(failure, group.count) for group in scenario.workers for failure in group.failures]
    full = measured.capacity.cost_per_s
    times: list[float] = []
    estimates: list[float] = []
    truths: list[float] = []

    def watch(now: float) -> None:
        estimator = policy.weir.learned["default"].estimator
        times.append(round(now, 3))
        estimates.append((estimator.rate or 0.0) / full)
        truths.append(1.0 - sum(_lost(failure, count, now) for failure, count in failures))

    simulation.watch = watch
    simulation.run_until(scenario.duration_s)
    curves = (Curve("estimate", tuple(times), tuple(estimates)), Curve("truth", tuple(times), tuple(truths)))
    return Panel(title, curves, "")


def _lost(failure: Failure, count: int, now: float) -> float:
    """The share of capacity that a failure takes at this moment."""
    if not failure.from_s <= now < failure.until_s:
        return 0.0
    part = (failure.workers or count) / count
    return part if failure.kind == "down" else part * (1 - 1 / failure.factor)


CLOSEUPS: Mapping[str, Callable[[int], tuple[Own | Panels, str]]] = {
    "coverage": coverage,
    "rate": rate,
    "steps": batches.steps,
}
