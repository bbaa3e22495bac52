"""The page docs/results/governor.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtests.bench.governor.burst import Burst, timeline
from loadtests.report.figure import Figure
from loadtests.report.page import head, parts_summary, parts_table
from loadtests.report.page import picture as drawn

ALT = "One job runs at any time; clients that come back when told to are all served, one after another"
METHOD = """\
The governor is a process of its own under uvloop, as it is shipped, with the stub for a backend. For speed it has one
core to itself, and its client, another process that only counts ends of lines, another core; a figure is the median of
the rounds with the least and the greatest value. The yardstick has the governor's core and the same client, and does
nothing but answer. On a machine that is busy with other things a round trip waits for its turn at the processor twice,
so that one-at-a-time figures say little; the governor's own processor time, in the notes, says more. An upload is two
round trips: a manifest, and one chunk of 1 kB, which runs a job that takes no time.

Memory is resident memory, as the kernel tells it, after a first scrape and a first ping. The silent connections come
from several loopback addresses. The one that wants too much declares its jobs one after another and sends all of each
but the last chunk; what it may reserve is bounded by GOVERNOR_CONNECTION_BYTES.

In the burst all clients are connected before the first of them writes. Who comes back does what the original's client
does: it sleeps as long as it was told and sends the same frame again with the next `seq`, fifty times at most. The
state is read from /metrics some thirty times a second, and from the receipts of every reply.

The fuzzer mutates kept frames (tests/governor/corpus) with a fixed seed and feeds them, cut at random places, to the
protocol without a socket, among them hang-ups, idle limits, and jobs that end in every way. Every reply is parsed and
its keys, their order, and its receipts are compared with what the wire allows; what is held must be within the bounds,
and nothing when all have left. `python -m loadtests.bench.governor.guided` does the same with atheris, which is guided
by what it reaches; it is not part of this page, since it is not installed with the rest.

The wire and its idea are those of [heptamini](https://github.com/newssourcecrawler/heptamini).
"""


def write(
    target: Path,
    parts: dict[str, list[Figure]],
    notes: Sequence[str],
    bursts: Sequence[Burst],
    *,
    command: str,
    where: str,
) -> list[Path]:
    """The page, and its pictures beside it: none where the burst was not measured, or without matplotlib."""
    drawn = _drawn(bursts, target) if bursts else []
    text = page(parts, notes, bursts, command=command, where=where, picture=target.stem if drawn else "")
    target.write_text(text, encoding="utf-8")
    return [target, *drawn]


def _drawn(bursts: Sequence[Burst], target: Path) -> list[Path]:
    try:
        from loadtests.bench.governor.picture import draw
    except ModuleNotFoundError:
        return []
    return list(draw(bursts[0], bursts[1], target))


def page(
    parts: dict[str, list[Figure]],
    notes: Sequence[str],
    bursts: Sequence[Burst],
    *,
    command: str,
    where: str,
    picture: str = "",
) -> str:
    """`picture` is the name that its files begin with, if there is one."""
    lines = [head("The governor", command=command, machine=where), parts_summary(parts), "", *parts_table(parts), ""]
    for note in notes:
        lines += [note, ""]
    if picture:
        lines += [drawn(picture, ALT), ""]
    if bursts:
        lines += ["## What the governor said of itself", ""]
    for burst, how in zip(bursts, ("told once", "coming back", "coming back"), strict=False):
        lines += [f"{burst.told}, {how}:", "", "```text", *timeline(burst.states), "```", ""]
    return "\n".join([*lines, "## How it is measured", "", METHOD.rstrip(), ""])
