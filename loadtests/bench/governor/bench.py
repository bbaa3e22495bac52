"""The governor's benchmark: its speed, its memory under hostile clients, and a burst."""

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
HOW = ("single attempts", "with retries", "with retries")
ALT = "One job runs at any time; clients that retry when asked to are all served, one after another"
QUESTION = "More clients than slots: what runs?"
METHOD = """\
The governor runs under uvloop with default settings in its own process, with the stub as its backend. For speed it has
a core to itself and its client another; the client only counts line ends. A figure is the median of the rounds with the
lowest and the highest value. The reference has the governor's core and the same client, and only answers. On a busy
machine a round trip waits for a processor twice, so figures for one ping at a time are uncertain; the governor's
processor time, in the notes, is better. An upload is two round trips: a manifest, and one chunk of 1 kB, which runs a
job that takes no time.

Memory is resident memory as the kernel reports it, after a first scrape and a first ping. The silent connections come
from several loopback addresses. The hostile connection declares its jobs one after another and sends each without its
last chunk; GOVERNOR_CONNECTION_BYTES limits what it may reserve.

In the burst all clients are connected before the first of them writes. A client that retries does what the original's
client does: it waits as long as the reply says and sends the same frame again with the next `seq`, at most fifty times.
The state is read from /metrics about thirty times a second, and from the receipts of every reply.

Malformed lines are not part of this page: tests send them to the protocol, and `make fuzz ARGS="--only governor"` does
so for any time, guided by coverage. The wire format and its idea are those of
[heptamini](https://github.com/newssourcecrawler/heptamini).
"""


Part = Literal["held", "burst", "speed"]
PARTS: tuple[Part, ...] = ("held", "burst", "speed")


class Options(msgspec.Struct, frozen=True):
    only: Annotated[tuple[Part, ...], msgspec.Meta(description="this part; may be repeated")] = ()
    seconds: Annotated[float, msgspec.Meta(ge=0.2, le=60, description="duration of each load")] = 2.0
    rounds: Annotated[int, msgspec.Meta(ge=1, le=15, description="repetitions of the speed part")] = 3
    stub_s: Annotated[float, msgspec.Meta(ge=0.05, le=60, description="duration of a job in the burst of 20")] = 10.0
    back_s: Annotated[float, msgspec.Meta(ge=0.05, le=60, description="the same where clients retry")] = 1.0
    crowd: Annotated[int, msgspec.Meta(ge=0, le=1000, description="clients of a third burst; 0: no such burst")] = 200


QUICK = {"seconds": 1.0, "rounds": 1, "stub_s": 2.0, "back_s": 0.2, "crowd": 0}


async def measure(options: Options, say: Say) -> Result:
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
    blocks: list[Block] = [parts_summary(parts), parts_table(parts), *notes]
    if bursts:
        once, again, *_ = bursts
        blocks += [Plot(ALT, lambda theme: _drawn(once, again, theme)), "## The governor's own metrics"]
    for one, how in zip(bursts, HOW, strict=False):
        blocks += [f"{one.title}, {how}:", ["```text", *timeline(one.states), "```"]]
    return Result("The governor", parts, [*blocks, "## How it is measured\n\n" + METHOD])


def _drawn(once: Burst, again: Burst, theme: Theme) -> Drawing:
    from loadtests.report.style import SMALL_PT, headline, sheet

    figure, (left,) = sheet(1, left=0.07, right=0.47)
    place = left.get_position()
    right = figure.add_axes((0.56, place.y0, 0.41, place.height))
    note = f"{once.clients} clients at once, cap {once.cap}. A client that is asked to retry gives up, or does retry."
    headline(figure, theme, QUESTION, note)
    _panel(left, once, f"jobs of {once.stub_s:g} s, single attempts", theme)
    left.legend(frameon=False, fontsize=SMALL_PT, loc="center right")
    _panel(right, again, f"jobs of {again.stub_s:g} s, with retries", theme)
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
    highest = burst.states[-1].yielded
    beyond = f"; {highest} yields in all" if highest > top else ""
    axes.text(0, 1.01, title + beyond, transform=axes.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")
