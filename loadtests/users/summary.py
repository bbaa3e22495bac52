"""The result of a run as text, JSON and HTML: what each group got in each stage, and every outcome."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.users.ledger import Ledger, Row
from loadtests.users.run import Run

KINDS = ("served", "refused", "left", "lost", "failed")
TABLE_MARK = '<div id="root"'
STYLE = """
.weir{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1.5rem}
.weir h1{font-size:1.5rem;margin:0 0 .5rem} .weir pre{overflow-x:auto;font-size:12.5px;line-height:1.45}
"""


class Line(NamedTuple):
    """One group in one stage. Times in ms; shares are of all requests; None without data."""

    stage: str
    group: str
    requests: int
    served: int
    degraded: int
    refused: int
    left: int
    lost: int
    failed: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    first_p50_ms: int | None
    first_p95_ms: int | None
    refused_p50_ms: int | None


def lines(run: Run) -> list[Line]:
    """Stages and groups with requests, in the scenario's order."""
    stages, groups = run.scenario.stage_names, run.scenario.groups
    every = [_line(run.ledger, stage, group.name) for stage in stages for group in groups]
    return [line for line in every if line.requests]


def _line(ledger: Ledger, stage: str, group: str) -> Line:
    def here(row: Row) -> bool:
        return row.stage == stage and row.group == group

    def of_kind(kind: str) -> int:
        return ledger.times(lambda row: here(row) and row.kind == kind).count

    served = ledger.times(lambda row: here(row) and row.kind == "served")
    degraded = ledger.times(lambda row: here(row) and row.kind == "served" and bool(row.detail)).count
    refused = ledger.times(lambda row: here(row) and row.kind == "refused")
    first = ledger.first_words(stage, group)
    return Line(
        stage, group, ledger.times(here).count, served.count, degraded, refused.count,
        of_kind("left"), of_kind("lost"), of_kind("failed"),
        served.percentile_ms(0.5), served.percentile_ms(0.95), served.percentile_ms(0.99),
        first.percentile_ms(0.5), first.percentile_ms(0.95), refused.percentile_ms(0.5),
    )  # fmt: skip


def text(run: Run) -> str:
    scenario = run.scenario
    head = [f"{scenario.name}: {scenario.asks}", "", scenario.caption, *(f"- {what}" for what in scenario.watch)]
    if not run.ledger.total:
        return "\n".join([*head, "", "No request was made."])
    return "\n".join([*head, "", *_stages(run), "", *_outcomes(run.ledger), "", *_notes(run)])


def _stages(run: Run) -> Iterator[str]:
    columns = (
        "requests  served (cut)  refused    left    lost  failed | "
        "served p50     p95     p99 | first p50     p95 | refused p50"
    )
    wide = max(5, *map(len, run.scenario.stage_names))
    who = max(3, *(len(group.name) for group in run.scenario.groups))
    yield f"{'stage':<{wide}}  {'who':<{who}} {columns}"
    yield "-" * (wide + who + 3 + len(columns))
    for line in lines(run):
        yield (
            f"{line.stage:<{wide}}  {line.group:<{who}} {line.requests:>8} {_share(line.served, line):>7} "
            f"{_share(line.degraded, line, brackets=True):>5} {_share(line.refused, line):>8} {line.left:>7} "
            f"{line.lost:>7} {line.failed:>7} | {_ms(line.p50_ms):>10} {_ms(line.p95_ms):>7} {_ms(line.p99_ms):>7} | "
            f"{_ms(line.first_p50_ms):>9} {_ms(line.first_p95_ms):>7} | {_ms(line.refused_p50_ms):>11}"
        )
    yield "Times in ms, from the moment a user asked; first: the first words of a stream. Shares are of the requests."


def _is(key: tuple[str, str, str], row: Row) -> bool:
    return (row.group, row.surface, row.outcome) == key


def _outcomes(ledger: Ledger) -> Iterator[str]:
    merged = sorted({(row.group, row.surface, row.outcome) for row, _ in ledger.rows()})
    head = f"{'who':<10} {'surface':<12} {'outcome':<44} {'count':>8} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}"
    yield head
    yield "-" * len(head)
    for key in merged:
        times = ledger.times(partial(_is, key))
        figures = " ".join(f"{_ms(times.percentile_ms(q)):>8}" for q in (0.50, 0.95, 1.0))
        yield f"{key[0]:<10} {key[1]:<12} {key[2][:44]:<44} {times.count:>8} {figures}"


def _notes(run: Run) -> Iterator[str]:
    for (start, until), after in zip(run.trouble.windows, afterwards(run), strict=True):
        last = "Every request that began later was answered."
        if after is not None:
            last = f"The last request that was not answered began {after:g} s after that."
        yield f"Workers were slowed from {start - run.began:.0f} s to {until - run.began:.0f} s. {last}"
    if run.trouble.missed:
        yield f"{run.trouble.missed} times that could not be renewed: at times they were not slowed."
    late = run.lateness
    yield (
        f"This process was away for {late.total_s:.1f} s of {run.seconds:.0f} s, for {late.worst_s * 1000:.0f} ms at "
        "the most: times are longer by that, and verdicts leave it out."
    )


def afterwards(run: Run) -> list[float | None]:
    """For each fault, the seconds from its end to the start of the last unanswered request; None if all were answered.

    Requests after the next fault's start belong to that fault.
    """
    found: list[float | None] = []
    starts = [*(start - run.began for start, _ in run.trouble.windows[1:]), float("inf")]
    for (_, until), following in zip(run.trouble.windows, starts, strict=False):
        over_s = until - run.began
        unanswered = [at for at in run.ledger.unanswered_s() if over_s <= at < following]
        found.append(round(max(unanswered) - over_s, 1) if unanswered else None)
    return found


def as_dict(run: Run, host: str) -> dict[str, Any]:
    """All figures. `began_at` is in seconds since 1970; percentiles are of answers only."""
    scenario = run.scenario
    answers = run.ledger.times(lambda row: row.kind == "served")
    return {
        "scenario": scenario.name,
        "asks": scenario.asks,
        "caption": scenario.caption,
        "watch": list(scenario.watch),
        "host": host,
        "began_at": run.began_at,
        "seconds": round(run.seconds, 1),
        "users": scenario.max_users,
        "requests": run.ledger.total,
        **{kind: run.ledger.count(kind) for kind in KINDS},
        "degraded": run.ledger.times(lambda row: row.kind == "served" and bool(row.detail)).count,
        **{f"p{q * 100:g}_ms": answers.percentile_ms(q) for q in (0.5, 0.95, 0.99)},
        "stages": [line._asdict() for line in lines(run)],
        "outcomes": [
            {**row._asdict(), "count": times.count}
            | {f"p{q * 100:g}_ms": times.percentile_ms(q) for q in (0.5, 0.95, 0.99, 1.0)}
            for row, times in run.ledger.rows()
        ],
        "by_second": [{"s": at, **{kind: kinds[kind] for kind in KINDS}} for at, kinds in run.ledger.seconds()],
        "broken": [
            {"from_s": round(start - run.began, 1), "until_s": round(until - run.began, 1), "unanswered_after_s": after}
            for (start, until), after in zip(run.trouble.windows, afterwards(run), strict=True)
        ],
        "away_s": round(run.lateness.total_s, 3),
    }


def write(run: Run, host: str, folder: Path) -> None:
    """Write summary.txt and summary.json into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.txt").write_text(text(run) + "\n", encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(as_dict(run, host), indent=1) + "\n", encoding="utf-8")


def onto_page(page: str, run: Run) -> str:
    """Locust's HTML report with the summary above its tables; unchanged if the mark is missing."""
    section = (
        f'<style>{STYLE}</style><section class="weir"><h1>{html.escape(run.scenario.name)}</h1>'
        f"<pre>{html.escape(text(run))}</pre></section>"
    )
    return page.replace(TABLE_MARK, section + TABLE_MARK, 1)


def _ms(value: int | None) -> str:
    return "-" if value is None else str(value)


def _share(count: int, line: Line, *, brackets: bool = False) -> str:
    share = f"{count / line.requests:.0%}"
    return f"({share})" if brackets else share
