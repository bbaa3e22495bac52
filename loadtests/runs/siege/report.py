"""A siege as figures with targets, as a page, and as lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from loadtests.report.figure import Figure, held
from loadtests.report.page import head, table
from loadtests.runs.siege.attackers import OPEN_WITHIN_S, REOPENS_PER_S
from loadtests.runs.siege.judging import MOST_LATE, Result, baseline_mb, judge
from loadtests.runs.siege.run import CONNECTIONS, DEADLINE_MS, LOAD, NEWCOMERS, SHAPE

TITLE = "Siege: an honest tenant beside a thousand clients who misbehave"
INTRO = """\
**{verdict}**

Real processes on loopback: {shape} (capacity {per_s:.0f} answers/s), one router with its default settings and a
tenants file, and an open-loop client that asks for {load:.0%} of the capacity with a deadline of {deadline_ms:g} ms. Of
its requests {newcomers:.0%} open a connection each (*new*), and the others use at most {connections} connections that
were open before the attack (*pooled*). Each row lasts {seconds:g} s and has a router of its own. The attackers of a row
come from 8 addresses (`idle_spread`: 254) and are all there after {within:g} s. When the router closes a connection,
they open another, {reopens:g} a second in all.
"""
OUTRO = """
- *Memory*: the most that the router's resident memory (VmRSS, looked at four times a second) was above the median of
  the second half of the undisturbed row, {baseline:.0f} MB.
- *Success*: answered with 200, whole, within the deadline, of all that were due during the attack. Latency counts from
  the moment at which a request was due. *p99 /*: over the same figure of the undisturbed row.
- *Refused* attackers got 429 or 503 or could not connect; all others whose connection ended were *cut off*.
- *Late*: requests that left the honest client itself over 20 ms late. Where it is more than {late:.0%}, the row
  measured the machine. The router has a core of its own where there are two or more; all else shares the others.
- New connections have no target in `idle_spread`: it takes every connection that the listener has.
"""


def verdict(result: Result) -> str:
    """In one line."""
    faults = [f" {row.name} could not be played: {row.fault.splitlines()[0]}." for row in result.rows if row.fault]
    return f"{held(result.judged)}{''.join(faults)}"


def page(result: Result, *, command: str, machine: str) -> str:
    """The whole page."""
    intro = INTRO.format(
        verdict=verdict(result), shape=SHAPE, per_s=result.per_s, load=LOAD,
        deadline_ms=DEADLINE_MS, newcomers=NEWCOMERS, connections=CONNECTIONS, seconds=result.seconds,
        reopens=REOPENS_PER_S, within=OPEN_WITHIN_S,
    )  # fmt: skip
    outro = OUTRO.format(baseline=baseline_mb(result.rows[0]), late=MOST_LATE)
    return "\n".join(
        [
            head(TITLE, command=command, machine=machine),
            intro,
            *_table(result),
            outro,
            "## The rows",
            "",
            *_abouts(result),
            "",
        ]
    )


def _table(result: Result) -> Iterator[str]:
    """A line for each figure, a column for each row."""
    judged = judge(result.rows)
    lines = [
        (first.name, *(_cell(found[number]) if found else "" for found in judged), first.wanted)
        for number, first in enumerate(judged[0])
    ]
    return table(("", *(f"{row.name}:" for row in result.rows), "Target:"), lines)


def _cell(figure: Figure) -> str:
    return f"**{figure.shown}**" if figure.held is False else figure.shown


def _abouts(result: Result) -> Iterator[str]:
    for row in result.rows:
        most = f" (here {row.counts.wanted:,})" if row.attack and row.counts.wanted < row.attack.count else ""
        yield f"- `{row.name}`: {row.about}{most}."


def lines(result: Result) -> Iterator[str]:
    """The same for the terminal."""
    for row, found in zip(result.rows, judge(result.rows), strict=True):
        yield f"\n{row.name}: {row.about}"
        if row.fault:
            yield f"  could not be played: {row.fault}"
        for figure in found:
            told = figure.verdict.strip("*").upper() if figure.held is False else figure.verdict
            yield f"  {told:<8}{figure.name:<18}{figure.shown:>12}  {figure.wanted:<12}{figure.note}".rstrip()
    yield f"\nundisturbed memory {baseline_mb(result.rows[0]):.0f} MB; {verdict(result)}"


def data(result: Result) -> dict[str, Any]:
    """For siege.json."""
    rows = [
        {"row": row.name, "figures": [figure.as_dict() for figure in found], "counts": asdict(row.counts),
         "fault": row.fault}
        for row, found in zip(result.rows, judge(result.rows), strict=True)
    ]  # fmt: skip
    return {"seconds": result.seconds, "capacity_per_s": result.per_s, "rows": rows}
