"""A run as one file that anybody can open and keep: no script, no other file, readable dark, light and on paper.

With a second run of the same scenario the two stand side by side, their plots on the same axes: what one sees is the
difference of their policies, since both met the same people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from loadtests.storm.page_style import STYLE
from loadtests.storm.report_plots import plots_of
from loadtests.storm.report_tables import endings_of, seconds_of, tenants_of
from loadtests.storm.report_words import milliseconds, name_of, percent, policy_words
from services.contracts.storm import Run

ENDED = {"done": "to its end", "stopped": "until it was stopped", "failed": "until it failed"}


def report(first: Run, second: Run | None = None) -> str:
    """The page."""
    runs = [first] if second is None else [first, second]
    title = f"Weir: {first.title}" + (", two runs" if second else "")
    body = [
        f"<h1>{escape(first.title)}</h1>",
        f"<p class='lead'>{escape(first.caption)}</p>",
        _list(first.watch),
        _figures(runs),
        *plots_of(runs),
        tenants_of(runs),
        *(endings_of(run, runs) for run in runs),
        *(seconds_of(run, runs) for run in runs),
        _method(runs),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _list(items: Iterable[str]) -> str:
    return f"<h2>What to look at</h2><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _figures(runs: Sequence[Run]) -> str:
    rows = ["".join(f"<td>{cell(run)}</td>" for run in runs) for _, cell in FIGURES]
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{row}</tr>" for (name, _), row in zip(FIGURES, rows, strict=True)
    )
    heads = "".join(f"<th scope='col'>{escape(name_of(run, runs))}</th>" for run in runs)
    return f"<h2>What it came to</h2><table><thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _when(run: Run) -> str:
    began = datetime.fromtimestamp(run.began_at_ms / 1000, UTC)
    return f"{began:%Y-%m-%d %H:%M:%S} UTC, {ENDED[run.ended]}{': ' + escape(run.why) if run.why else ''}"


def _policy(run: Run) -> str:
    words = policy_words(run.policy)
    return escape(words + (", and changed while it ran" if run.policy_changed else ""))


def _sliders(run: Run) -> str:
    return escape(", ".join(f"{name} {value:g}" for name, value in run.sliders.items()))


def _capacity(run: Run) -> str:
    if run.capacity_per_s is None:
        return "not told"
    return f"{run.capacity_per_s:g} answers a second" + (", load lowered to what may be sent" if run.capped else "")


def _count(name: str) -> Callable[[Run], str]:
    return lambda run: f"{getattr(run, name):,} ({percent(getattr(run, name) / run.sent if run.sent else None)})"


FIGURES: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("When", _when),
    ("Policies", _policy),
    ("Set to", _sliders),
    ("Workers can do", _capacity),
    ("Requests sent", lambda run: f"{run.sent:,}"),
    ("Answered on time", _count("on_time")),
    ("Answered late", _count("late")),
    ("Refused", _count("refused")),
    ("Failed", _count("failed")),
    ("Left before an answer", _count("gone")),
    ("Not sent (the bench's own bounds)", lambda run: f"{run.held_back:,}"),
    ("People answered on time, of those who asked", lambda run: percent(run.answered_share)),
    ("Answers on time, of what the workers can do", lambda run: percent(run.goodput_share)),
    (
        "Latency of answers: half, 95 %",
        lambda run: f"{milliseconds(run.p50_ms)}, {milliseconds(run.p95_ms)}; deadline {run.deadline_ms:.0f} ms",
    ),
    (
        "Worker time spent in vain",
        lambda run: "not told" if run.wasted_s is None else f"{run.wasted_s:g} s ({percent(run.wasted_share)})",
    ),
)


def _method(runs: Sequence[Run]) -> str:
    lag = f"The bench itself sent at most {max(run.worst_lag_ms for run in runs):g} ms late."
    return (
        "<h2>How it was measured</h2><p>Real requests through the router's front door. Each is sent at a time drawn "
        "beforehand, whatever became of the others, and its latency counts from that time. <em>On time</em>: the whole "
        "answer came within the deadline. A load of 1 is what the workers say they can do with requests of this size; "
        "where the router shortens answers, more than that can be answered. Worker time in vain is the router's own "
        f"count, as a share of all slots' time. {escape(lag)}</p>"
    )
