"""A run as one self-contained HTML file without scripts, readable in dark and light mode and in print.

With a second run of the same scenario, both plots share axes. Both runs had the same requests, so differences come from
their policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from operator import attrgetter
from pathlib import Path

from loadtests.storm.plots import Chart, Line, draw, draw_bars
from services.contracts.storm import PolicySwitches, Run, Second

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
ENDED = {"done": "to its end", "stopped": "until it was stopped", "failed": "until it failed"}
SWITCHES = ("admission", "fairness", "cancellation")
STYLES = ("good", "offered", "refused", "lost")
OF_TENANTS = ("asked", "answered", "sent", "on_time", "late", "refused", "failed", "gone", "p50_ms", "p95_ms")
OF_SECONDS = (
    "s", "sent", "on_time", "late", "refused", "failed", "gone", "held_back", "p50_ms", "p95_ms", "waiting", "level",
)  # fmt: skip
COLUMNS = {"s": "second", "p50_ms": "half, ms", "p95_ms": "95 %, ms"}
Read = Callable[[Second], float | None]


def report(first: Run, second: Run | None = None) -> str:
    runs = [first] if second is None else [first, second]
    title = f"Weir: {first.title}" + (", two runs" if second else "")
    body = [
        f"<h1>{escape(first.title)}</h1><p class='lead'>{escape(first.caption)}</p>",
        f"<h2>What to look at</h2><ul>{''.join(f'<li>{escape(each)}</li>' for each in first.watch)}</ul>",
        "<h2>What it came to</h2>",
        _table(("", *(_name(run, runs) for run in runs)), ((name, *map(cell, runs)) for name, cell in FIGURES)),
        *_plots(runs),
        "<h2>Each tenant</h2>",
        *(_table(_columns("tenant", OF_TENANTS), _tenants(run), _under(run, runs)) for run in runs),
        *(_endings(run, runs) for run in runs),
        *(_seconds(run, runs) for run in runs),
        _method(runs),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def policy_words(policy: PolicySwitches | None) -> str:
    if policy is None:
        return "unknown"
    off = [name for name in SWITCHES if not getattr(policy, name)]
    return "all on" if not off else f"{', '.join(off)} off"


def percent(value: float | None) -> str:
    """A share of 1 as percent."""
    return "unknown" if value is None else f"{100 * value:.1f} %"


def milliseconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f} ms"


def _name(run: Run, runs: Sequence[Run]) -> str:
    """The run's id, with a letter if there are two runs."""
    letter = "B: " if run is runs[-1] else "A: "
    return f"{letter if len(runs) > 1 else ''}run {run.run}"


def _under(run: Run, runs: Sequence[Run]) -> str:
    """The heading of a run's part if there are two."""
    return f"{_name(run, runs)}, policies: {policy_words(run.policy)}" if len(runs) > 1 else ""


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]], caption: str = "") -> str:
    """An HTML table; the first cell of a row is its head."""
    head = "".join(f"<th scope='col'>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr><th scope='row'>{escape(first)}</th>{''.join(f'<td>{escape(each)}</td>' for each in rest)}</tr>"
        for first, *rest in rows
    )
    words = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<div class='wide'><table>{words}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _columns(first: str, names: Iterable[str]) -> list[str]:
    return [first, *(COLUMNS.get(name, name.replace("_", " ")) for name in names)]


def _cells(of: object, names: Iterable[str]) -> list[str]:
    return ["" if (value := getattr(of, name)) is None else f"{value:,.0f}" for name in names]


def _tenants(run: Run) -> Iterator[list[str]]:
    return ([tenant.id, *_cells(tenant, OF_TENANTS)] for tenant in run.tenants)


def _endings(run: Run, runs: Sequence[Run]) -> str:
    """Endings by code as clients got them, and the router's own counts."""
    endings = [("refused", *item) for item in run.refused_by_code.items()]
    endings += [("failed", *item) for item in run.failed_by_code.items()]
    counted = ", ".join(f"{escape(outcome)} {value:,.0f}" for outcome, value in run.router_counted.items())
    router = f"<p>The router counted for these tenants: {counted}.</p>" if counted else ""
    if not endings:
        return f"<h3>{escape(_under(run, runs))}</h3>{router}" if router and len(runs) > 1 else router
    name = f" ({escape(_name(run, runs))})" if len(runs) > 1 else ""
    rows = ((kind, code, f"{count:,}") for kind, code, count in endings)
    return f"<h2>Why requests were not answered{name}</h2>{_table(('ended', 'code', 'requests'), rows)}{router}"


def _seconds(run: Run, runs: Sequence[Run]) -> str:
    name = f", {escape(_name(run, runs))}" if len(runs) > 1 else ""
    table = _table(_columns("second", OF_SECONDS[1:]), (_cells(second, OF_SECONDS) for second in run.series))
    return f"<details><summary>The figures of each second{name}</summary>{table}</details>"


def _when(run: Run) -> str:
    began = datetime.fromtimestamp(run.began_at_ms / 1000, UTC)
    return f"{began:%Y-%m-%d %H:%M:%S} UTC, {ENDED[run.ended]}{': ' + run.why if run.why else ''}"


def _capacity(run: Run) -> str:
    if run.capacity_per_s is None:
        return "unknown"
    return f"{run.capacity_per_s:g} answers a second" + (", load lowered to what may be sent" if run.capped else "")


def _count(name: str) -> Callable[[Run], str]:
    return lambda run: f"{getattr(run, name):,} ({percent(getattr(run, name) / run.sent if run.sent else None)})"


FIGURES: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("When", _when),
    ("Policies", lambda run: policy_words(run.policy) + (", and changed during the run" if run.policy_changed else "")),
    ("Settings", lambda run: ", ".join(f"{name} {value:g}" for name, value in run.sliders.items())),
    ("Capacity of the workers", _capacity),
    ("Requests sent", lambda run: f"{run.sent:,}"),
    ("Answered on time", _count("on_time")),
    ("Answered late", _count("late")),
    ("Refused", _count("refused")),
    ("Failed", _count("failed")),
    ("Disconnected before an answer", _count("gone")),
    ("Not sent (the bench's own limits)", lambda run: f"{run.held_back:,}"),
    ("Clients answered on time, share of all", lambda run: percent(run.answered_share)),
    ("Answers on time, share of the capacity", lambda run: percent(run.goodput_share)),
    (
        "Latency of answers: p50, p95",
        lambda run: f"{milliseconds(run.p50_ms)}, {milliseconds(run.p95_ms)}; deadline {run.deadline_ms:.0f} ms",
    ),
    (
        "Worker time wasted",
        lambda run: "unknown" if run.wasted_s is None else f"{run.wasted_s:g} s ({percent(run.wasted_share)})",
    ),
)


def _plots(runs: Sequence[Run]) -> Iterator[str]:
    """One plot per question, with all runs on the same axes."""
    yield f"<h2>Second by second</h2><div class='{'plots' if len(runs) == 1 else ''}'>"
    for question, make in PLOTS:
        charts = [make(run) for run in runs]
        if any(chart.has_values for chart in charts):
            top = max(chart.top for chart in charts)
            yield _section(question, runs, [draw(chart, top) for chart in charts])
    yield _section("Who is answered on time?", runs, [draw_bars("Success of each tenant", _bars(run)) for run in runs])
    yield "</div>"


def _section(question: str, runs: Sequence[Run], drawn: Sequence[str]) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(_under(run, runs))}</figcaption>{svg}</figure>"
        for run, svg in zip(runs, drawn, strict=True)
    )
    return f"<section><h3>{escape(question)}</h3><div class='side'>{figures}</div></section>"


def _whole(run: Run) -> list[Second]:
    """The complete seconds; the last may be partial."""
    return run.series[: max(1, int(run.lasted_s))]


def _chart(title: str, unit: str, lines: Sequence[tuple[str, Read, str]], level: str, run: Run) -> Chart:
    """`level` names the run's figure that is drawn as a horizontal line."""
    value = getattr(run, level) if level else None
    drawn = [Line(name, [read(second) for second in _whole(run)], style) for name, read, style in lines]
    return Chart(title, unit, drawn, (LEVELS[level], value) if value else None, run.marks)


def _sources(run: Run) -> Chart:
    def answers(source: str, second: Second) -> float:
        return float(second.sources.get(source, 0))

    names = sorted(run.sources, key=lambda name: -run.sources[name])
    lines = [(name, partial(answers, name), style) for name, style in zip(names, STYLES, strict=False)]
    return _chart("Where passages came from", "answers per second", lines, "", run)


LEVELS = {"deadline_ms": "deadline", "capacity_per_s": "capacity at full length"}
SENT, REFUSED, ON_TIME = (attrgetter(name) for name in ("sent", "refused", "on_time"))
PLOTS: tuple[tuple[str, Callable[[Run], Chart]], ...] = (
    (
        "What happens to the requests?",
        partial(
            _chart, "Requests sent, refused and answered on time, each second", "per second",
            (("sent", SENT, "offered"), ("refused", REFUSED, "refused"), ("on time", ON_TIME, "good")), "",
        ),
    ),
    (
        "Are answers on time?",
        partial(
            _chart, "Latency of the answers of each second", "ms",
            (("95 %", attrgetter("p95_ms"), "offered"), ("half", attrgetter("p50_ms"), "good")), "deadline_ms",
        ),
    ),
    (
        "Is the workers' time used well?",
        partial(
            _chart, "Answers on time and wasted, each second", "per second",
            (("on time", ON_TIME, "good"), ("late, failed or left", lambda s: s.late + s.failed + s.gone, "lost")),
            "capacity_per_s",
        ),
    ),
    (
        "How long is the queue?",
        partial(
            _chart, "Requests that wait in the router", "requests",
            (("waiting in the router", attrgetter("waiting"), "offered"),), "",
        ),
    ),
    (
        "How far are answers degraded?",
        partial(_chart, "Degradation level", "level", (("level", attrgetter("level"), "lost"),), ""),
    ),
    ("Where do passages come from?", _sources),
)  # fmt: skip


def _bars(run: Run) -> list[tuple[str, float | None, str]]:
    shares = [(tenant, tenant.answered / tenant.asked if tenant.asked else None) for tenant in run.tenants]
    return [(tenant.id, share, f"{percent(share)} of {tenant.asked:,}") for tenant, share in shares]


def _method(runs: Sequence[Run]) -> str:
    lag = f"The bench itself sent at most {max(run.worst_lag_ms for run in runs):g} ms late."
    return (
        "<h2>How it was measured</h2><p>Real requests through the router's front door. Each is sent at a time drawn "
        "beforehand, whatever became of the others, and its latency counts from that time. <em>On time</em>: the whole "
        "answer came within the deadline. A load of 1 is what the workers say they can do with requests of this size; "
        "where the router shortens answers, more than that can be answered. Worker time in vain is the router's own "
        f"count, as a share of all slots' time. {escape(lag)}</p>"
    )
