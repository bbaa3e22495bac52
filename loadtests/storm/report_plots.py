"""A report's plots: each asks a question, and two runs answer it on the same axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape

from loadtests.storm.plots import Bar, Chart, Level, Line, Moment, draw, draw_bars
from loadtests.storm.report_words import percent, under
from services.contracts.storm import Run, Second


def plots_of(runs: Sequence[Run]) -> Iterator[str]:
    """A figure for each question, each with every run."""
    yield f"<h2>Second by second</h2><div class='{'plots' if len(runs) == 1 else ''}'>"
    for heading, make in PLOTS:
        charts = [make(run) for run in runs]
        if not any(line.values and any(v is not None for v in line.values) for c in charts for line in c.lines):
            continue
        top = max(chart.top for chart in charts)
        drawn = (
            f"<figure><figcaption>{escape(under(run, runs))}</figcaption>{draw(replace(chart, highest=top))}</figure>"
            for run, chart in zip(runs, charts, strict=True)
        )
        yield f"<section><h3>{escape(heading)}</h3><div class='side'>{''.join(drawn)}</div></section>"
    drawn = (
        f"<figure><figcaption>{escape(under(run, runs))}</figcaption>{draw_bars('Success of each tenant', _bars(run))}"
        "</figure>"
        for run in runs
    )
    yield f"<section><h3>Who is answered on time?</h3><div class='side'>{''.join(drawn)}</div></section></div>"


def _of(run: Run, name: str) -> list[float | None]:
    return [getattr(second, name) for second in _whole(run)]


def _whole(run: Run) -> list[Second]:
    """The seconds that were whole: the last one may have ended early."""
    return run.series[: max(1, int(run.lasted_s))] if run.series else []


def _moments(run: Run) -> tuple[Moment, ...]:
    return tuple(Moment(mark.what, mark.s) for mark in run.marks)


def _capacity_level(run: Run) -> tuple[Level, ...]:
    return (Level("what the workers can do at full length", run.capacity_per_s),) if run.capacity_per_s else ()


def _load_chart(run: Run) -> Chart:
    lines = (
        Line("sent", _of(run, "sent"), "offered"),
        Line("refused", _of(run, "refused"), "refused"),
        Line("on time", _of(run, "on_time"), "good"),
    )
    return Chart("Requests sent, refused and answered on time, each second", "per second", lines, (), _moments(run))


def _latency_chart(run: Run) -> Chart:
    lines = (Line("95 %", _of(run, "p95_ms"), "offered"), Line("half", _of(run, "p50_ms"), "good"))
    levels = (Level("deadline", run.deadline_ms),)
    return Chart("Latency of the answers of each second", "ms", lines, levels, _moments(run))


def _goodput_chart(run: Run) -> Chart:
    lost = [(second.late + second.failed + second.gone) for second in _whole(run)]
    lines = (Line("on time", _of(run, "on_time"), "good"), Line("late, failed or left", lost, "lost"))
    return Chart("Answers on time and in vain, each second", "per second", lines, _capacity_level(run), _moments(run))


def _queue_chart(run: Run) -> Chart:
    lines = (Line("waiting in the router", _of(run, "waiting"), "offered"),)
    return Chart("Requests that wait in the router", "requests", lines, (), _moments(run))


def _level_chart(run: Run) -> Chart:
    lines = (Line("level", _of(run, "level"), "lost"),)
    return Chart("Degradation level", "level", lines, (), _moments(run))


def _sources_chart(run: Run) -> Chart:
    styles = ("good", "offered", "refused", "lost")
    names = sorted(run.sources, key=lambda name: -run.sources[name])[: len(styles)]
    lines = tuple(
        Line(name, [float(second.sources.get(name, 0)) for second in _whole(run)], style)
        for name, style in zip(names, styles, strict=False)
    )
    return Chart("Where passages came from", "answers per second", lines, (), _moments(run))


PLOTS: tuple[tuple[str, Callable[[Run], Chart]], ...] = (
    ("What is asked, and what becomes of it?", _load_chart),
    ("Are answers on time?", _latency_chart),
    ("Is the workers' time well spent?", _goodput_chart),
    ("How long is the line?", _queue_chart),
    ("How much was cut from answers?", _level_chart),
    ("Where do passages come from?", _sources_chart),
)


def _bars(run: Run) -> list[Bar]:
    return [
        Bar(
            tenant.id,
            tenant.answered / tenant.asked if tenant.asked else None,
            f"{percent(tenant.answered / tenant.asked if tenant.asked else None)} of {tenant.asked:,}",
        )
        for tenant in run.tenants
    ]
