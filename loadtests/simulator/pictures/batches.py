"""Batching: a picture of the requests in each step, and a table of latency by window."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from loadtests.report import style
from loadtests.simulator.plots import Shape
from loadtests.simulator.stepping import Asked, Step, Stepping, stepped
from services.core.batcher import Batching
from services.worker.engines.simulated import LatencyModel

# ---- the picture

SLOTS = 3
CHUNK_TOKENS = 16
LATENCY = LatencyModel(step_ms=20, per_sequence_ms=2, prefill_ms_per_token=1)
TITLES = {
    Batching.CONTINUOUS: "continuous: whoever waits joins at the next step while a slot is free",
    Batching.STATIC: "static: a batch runs until its last answer ends",
}


def asked() -> list[Asked]:
    """Six requests: B is short, D has a long prompt, C's client leaves during its answer."""
    return [
        Asked("A", 0.0, prompt_tokens=6, answer_tokens=12, deadline=10),
        Asked("B", 0.0, prompt_tokens=4, answer_tokens=3, deadline=11),
        Asked("C", 0.0, prompt_tokens=4, answer_tokens=20, deadline=12, leaves_at_s=0.2),
        Asked("D", 0.04, prompt_tokens=44, answer_tokens=5, deadline=13),
        Asked("E", 0.06, prompt_tokens=4, answer_tokens=5, deadline=14),
        Asked("F", 0.15, prompt_tokens=5, answer_tokens=3, deadline=15),
    ]


def pictured(batching: Batching) -> Stepping:
    return stepped(asked(), batching, LATENCY, slots=SLOTS, queue_size=9, chunk_tokens=CHUNK_TOKENS)


FIGURES: Mapping[str, Callable[[Stepping], str]] = {
    "steps": lambda run: f"{len(run.steps)}",
    "all answered after": lambda run: f"{1000 * run.steps[-1].ended_s:.0f} ms",
    "sequences in a step, mean": lambda run: f"{sum(len(each.in_it) for each in run.steps) / len(run.steps):.1f}",
    "slots left empty while somebody waits": lambda run: (
        f"{sum(SLOTS - len(each.in_it) for each in run.steps if each.waiting)}"
    ),
}


def steps(jobs: int) -> tuple[Shape, list[Sequence[str]]]:
    """The requests in each step, continuous above static, and the totals."""
    runs = {batching: pictured(batching) for batching in TITLES}
    rows = ((name, *(figure(run) for run in runs.values())) for name, figure in FIGURES.items())
    drawn = Steps(
        name="steps",
        question="Who is in each step?",
        note=f"Number: prompt tokens read, at most {CHUNK_TOKENS} a step. Full colour: a token written. "
        "×: its client left.",
        x_label="time, milliseconds; a step is as wide as it lasts",
        runs=runs,
    )
    return drawn, [("", *(batching.value for batching in runs)), *rows]


@dataclass(frozen=True, slots=True)
class Steps(Shape):
    """A row per slot and the queue below, for each way to batch."""

    runs: Mapping[Batching, Stepping]

    def draw(self, theme: style.Theme) -> Figure:
        figure = style.blank(5.4)
        style.headline(figure, theme, self.question, self.note)
        grid = figure.add_gridspec(2, 1, left=0.09, right=0.98, top=0.8, bottom=0.1, hspace=0.42)
        ends_ms = max(run.steps[-1].ended_s for run in self.runs.values()) * 1000
        for row, (batching, run) in enumerate(self.runs.items()):
            axes = figure.add_subplot(grid[row, 0])
            axes.set_title(TITLES[batching], loc="left", fontsize=style.LABEL_PT, color=theme.ink, pad=6)
            _panel(axes, run, theme)
            axes.set_xlim(0, ends_ms)
            axes.set_ylim(SLOTS + 0.95, -0.1)
            axes.set_yticks([0.5, 1.5, 2.5, 3.55], ["slot 1", "slot 2", "slot 3", "in line"])
            axes.grid(visible=False)
        axes.set_xlabel(self.x_label)
        return figure


def _panel(axes: Axes, run: Stepping, theme: style.Theme) -> None:
    everyone = {one.id: one for one in asked()}
    colors = dict(zip(everyone, theme.tenants, strict=True))
    places: dict[str, int] = {}
    for step in run.steps:
        places = _seated(places, step)
        for id, place in places.items():
            read = f"{step.reads[id]}" if id in step.reads else ""
            leaves = step.began_s < everyone[id].leaves_at_s < step.ended_s
            pale = 1.0 if id in step.writes else 0.3 if read else 0.12
            _cell(axes, step, place, linewidth=0, color=colors[id], alpha=pale)
            _lettered(axes, step, place, f"{id} ×" if leaves else id, read, theme.ink if pale < 1 else theme.paper)
        for place in set(range(SLOTS)) - set(places.values()):
            _cell(axes, step, place, linewidth=0.8, edgecolor=theme.grid, facecolor="none")
    _line_below(axes, run, colors)


def _cell(axes: Axes, step: Step, place: int, **looks: Any) -> None:
    began_ms, ended_ms = 1000 * step.began_s, 1000 * step.ended_s
    axes.add_patch(Rectangle((began_ms + 1, place + 0.08), ended_ms - began_ms - 2, 0.84, **looks))


def _lettered(axes: Axes, step: Step, place: int, name: str, read: str, color: str) -> None:
    """Writes the request's name, and below it the prompt tokens read."""
    middle_ms = 500 * (step.began_s + step.ended_s)
    heights = ((0.33, name, style.SMALL_PT), (0.7, read, 7.0)) if read else ((0.5, name, style.SMALL_PT),)
    for height, text, size in heights:
        axes.text(middle_ms, place + height, text, ha="center", va="center", fontsize=size, color=color)


def _seated(before: Mapping[str, int], step: Step) -> dict[str, int]:
    """Slots by request: running requests keep theirs, new ones take the first free slots."""
    places = {id: before[id] for id in step.in_it if id in before}
    free = iter(sorted(set(range(SLOTS)) - set(places.values())))
    return places | {id: next(free) for id in step.in_it if id not in places}


def _line_below(axes: Axes, run: Stepping, colors: Mapping[str, str]) -> None:
    """Draws each queued request from its arrival to its start."""
    started_s: dict[str, float] = {}
    for step in run.steps:
        for id in step.in_it:
            started_s.setdefault(id, step.began_s)
    waited = [one for one in asked() if started_s[one.id] > one.at_s]
    for row, one in enumerate(waited):
        ends_ms, height = (1000 * one.at_s, 1000 * started_s[one.id]), 3.25 + 0.2 * row
        axes.plot(ends_ms, [height, height], color=colors[one.id], linewidth=2.5)
        axes.text(ends_ms[0] - 4, height, one.id, ha="right", va="center", fontsize=7.5, color=colors[one.id])


# ---- the table

LOADS = (0.1, 0.4, 0.7, 0.9, 0.97)
WINDOWS_MS = (0.0, 10.0, 50.0)
BATCH = 16
STEP = LatencyModel(step_ms=20, per_sequence_ms=2, prefill_ms_per_token=0)
REQUESTS = 10_000


def gathered(load: float, window_ms: float, seed: int = 1) -> Stepping:
    """Poisson arrivals of requests of one step each, on a static engine with this window."""
    chance = random.Random(seed)
    rate_per_s = load * BATCH / (STEP.mean_ms(BATCH, 0) / 1000)
    at_s, coming = 0.0, []
    for number in range(REQUESTS):
        at_s += chance.expovariate(rate_per_s)
        coming.append(Asked(f"{number}", at_s, prompt_tokens=1, answer_tokens=1))
    return stepped(coming, Batching.STATIC, STEP, slots=BATCH, queue_size=REQUESTS, window_s=window_ms / 1000)


def latency_ms(run: Stepping, quantile: float) -> float:
    latencies = sorted(one.latency_s for one in run.served)
    return 1000 * latencies[int(quantile * len(latencies))]


def busy(run: Stepping) -> float:
    """The share of time in steps."""
    return sum(step.ended_s - step.began_s for step in run.steps) / run.steps[-1].ended_s


def windows(jobs: int) -> tuple[None, list[Sequence[str]]]:
    """Median and p99 of latency, and the share of time in steps, for each load and window."""
    heads = ("load", *(f"window {window_ms:g} ms: p50, p99, busy" for window_ms in WINDOWS_MS))
    rows = ((f"{load:.0%}", *(_summary(gathered(load, window_ms)) for window_ms in WINDOWS_MS)) for load in LOADS)
    return None, [heads, *rows]


def _summary(run: Stepping) -> str:
    return f"{latency_ms(run, 0.5):.0f} ms, {latency_ms(run, 0.99):.0f} ms, {busy(run):.0%}"
