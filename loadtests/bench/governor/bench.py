"""The governor's proofs: its speed, what it can be made to hold, and its burst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from loadtests.bench.governor import burst, held, speed
from loadtests.bench.governor.burst import Burst, timeline
from loadtests.report.figure import Figure
from loadtests.report.page import parts_summary, parts_table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Plot, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

CONNECTIONS = 10_000
CLIENTS = 20
CROWD_STUB_S = 0.2
HOW = ("told once", "coming back", "coming back")
ALT = "One job runs at any time; clients that come back when told to are all served, one after another"
QUESTION = "More clients than slots: what runs?"
METHOD = """\
The governor is a process of its own under uvloop, as it is shipped, with the stub for a backend. For speed it has one
core to itself, and its client, which only counts ends of lines, another core; a figure is the median of
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

Broken lines are no part of this page: tests feed them to the protocol, and `make fuzz ARGS="--only governor"` does so
for as long as it is told, guided by what they reach. The wire and its idea are those of
[heptamini](https://github.com/newssourcecrawler/heptamini).
"""


Part = Literal["held", "burst", "speed"]
PARTS: tuple[Part, ...] = ("held", "burst", "speed")


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    only: Annotated[tuple[Part, ...], msgspec.Meta(description="this part; may be given again")] = ()
    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="how long each load lasts")] = 2.0
    rounds: Annotated[int, msgspec.Meta(ge=1, le=15, description="how often speed is measured")] = 3
    stub_s: Annotated[float, msgspec.Meta(ge=0.05, le=60, description="how long a job of the burst of 20 takes")] = 10.0
    back_s: Annotated[float, msgspec.Meta(ge=0.05, le=60, description="the same where clients come back")] = 1.0
    crowd: Annotated[int, msgspec.Meta(ge=0, le=1000, description="clients of a third burst; 0: there is none")] = 200


QUICK = {"seconds": 1.0, "rounds": 1, "stub_s": 2.0, "back_s": 0.2, "crowd": 0}


async def measure(options: Options, say: Say) -> Result:
    """Every part, or those that are chosen, in the order in which they are named."""
    parts: dict[str, list[Figure]] = {}
    notes: list[str] = []
    bursts: list[Burst] = []
    for part in options.only or PARTS:
        say(part)
        if part == "speed":
            parts[part] = await speed.measure(options.seconds, options.rounds)
        elif part == "held":
            parts[part], notes = await held.measure(CONNECTIONS)
        else:
            bursts = await _bursts(options)
            parts[part] = list(burst.figures(*bursts))
    return result(parts, notes, bursts)


async def _bursts(options: Options) -> list[Burst]:
    bursts = [await burst.at_once(CLIENTS, options.stub_s), await burst.coming_back(CLIENTS, options.back_s)]
    return [*bursts, *([await burst.coming_back(options.crowd, CROWD_STUB_S)] if options.crowd else [])]


def result(parts: dict[str, list[Figure]], notes: Sequence[str], bursts: Sequence[Burst]) -> Result:
    """As a page; with a picture where there were bursts."""
    blocks: list[Block] = [parts_summary(parts), parts_table(parts), *notes]
    if bursts:
        once, again, *_ = bursts
        blocks += [Plot(ALT, lambda theme: _drawn(once, again, theme)), "## What the governor said of itself"]
    for one, how in zip(bursts, HOW, strict=False):
        blocks += [f"{one.told}, {how}:", ["```text", *timeline(one.states), "```"]]
    return Result("The governor", parts, [*blocks, "## How it is measured\n\n" + METHOD])


def _drawn(once: Burst, again: Burst, theme: Theme) -> Drawing:
    """What runs, what has run, and who was told to come back, as /metrics told it."""
    from loadtests.report.style import SMALL_PT, headline, sheet

    figure, (left,) = sheet(1, left=0.07, right=0.47)
    place = left.get_position()
    right = figure.add_axes((0.56, place.y0, 0.41, place.height))
    told = f"{once.clients} clients at once, cap {once.cap}. Who is told to come back leaves, or does come back."
    headline(figure, theme, QUESTION, told)
    _panel(left, once, f"jobs of {once.stub_s:g} s, told once", theme)
    left.legend(frameon=False, fontsize=SMALL_PT, loc="center right")
    _panel(right, again, f"jobs of {again.stub_s:g} s, coming back when told to", theme)
    return figure


def _panel(axes: Axes, burst: Burst, title: str, theme: Theme) -> None:
    from loadtests.report.style import SMALL_PT

    times = [state.at_s for state in burst.states]
    top = burst.clients * 1.08
    for name, values, color in (
        ("yielded", [state.yielded for state in burst.states], theme.wasted),
        ("executed", [state.executed for state in burst.states], theme.useful),
        ("inflight", [state.inflight for state in burst.states], theme.weir),
    ):
        axes.step(times, values, where="post", color=color, linewidth=2.2 if name == "inflight" else 1.6, label=name)
    axes.set_ylim(0, top)
    axes.set_yticks(range(0, burst.clients + 1, max(1, burst.clients // 4)))
    axes.set_xlim(0, times[-1])
    axes.set_xlabel("seconds")
    most = burst.states[-1].yielded
    beyond = f"; {most} yields in all" if most > top else ""
    axes.text(0, 1.01, title + beyond, transform=axes.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")
