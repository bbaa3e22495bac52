"""The gain and the cost of batching on real models: runs every part, and makes the page.

On a CPU the models have 5 and 30 million parameters, and a million for the cancels; on a GPU a billion, in bfloat16. An
answer that batching changed ends the process. Modules that need torch, an optional extra, are imported late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from loadtests.bench.batching import cancel, stall, throughput
from loadtests.bench.batching.section import Section
from loadtests.bench.batching.throughput import SLOTS, Occupancy
from loadtests.report.page import parts_summary, parts_table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Plot, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

QUESTION = "How many sequences share a step?"
ALT = "Sequences in each step: static batches empty out before the next begins, continuous ones stay full"
METHOD = """\
The engine is stepped in this process, with one thread of PyTorch, by the worker's own batch former: `static` admits
eight requests into an empty engine and runs them to the end; finished ones leave at once, and none joins. `continuous`
admits the next one at every step. `generate` is transformers' own, on prompts padded to one batch, and continues for
all until the longest is done: what is available without a batching server. Useful tokens are those that were requested.
All ways answer the same requests, in the same order, with the same weights. They take turns, in reverse order every
other round, after a warm-up. A figure is the median with the lowest and the highest value; without those there was one
round, and processor seconds are more reliable. They stand beside wall seconds: where the two differ, something else ran
on the machine.

Answers have the requested length, whatever the model says; the weights are random, since they do not change the cost of
a step. In float32 every answer must equal, token for token, the one that the model gives alone, or there is no page.
The one exception is a tie: if the model's logits for the two tokens are within a ten-thousandth, the order of sums
decides, and the answers differ from there on. In half precision that is common, and only counted. Memory is the maximum
of tokens held at once: whole pages here, padded rows with `generate`.

Cancels and the costs of process and loop are measured as in service: the worker's loop, and the engine in its own
process. Tokens computed for clients that had left are counted in that process, by the engine's own counters. `weir
worker calibrate` measures how long a step takes by its contents.
"""


Part = Literal["throughput", "stall", "cancel", "border"]
PARTS: tuple[Part, ...] = ("throughput", "stall", "cancel", "border")
Size = Literal["tiny", "5m", "30m", "1b"]
Steps = Sequence[tuple[float, int]]
"""(seconds from the start to the end, sequences) of each step."""


class Options(msgspec.Struct, frozen=True):
    device: Annotated[Literal["auto", "cpu", "cuda"], msgspec.Meta(description="device of the models")] = "auto"
    size: Annotated[tuple[Size, ...], msgspec.Meta(description="a model; 5m and 30m on a CPU, else 1b")] = ()
    only: Annotated[tuple[Part, ...], msgspec.Meta(description="this part; may be repeated")] = ()
    requests: Annotated[int, msgspec.Meta(ge=8, le=1024, description="number of batched requests")] = 64
    rounds: Annotated[int, msgspec.Meta(ge=1, le=15, description="rounds of the first model; the others have one")] = 3
    cancels: Annotated[int, msgspec.Meta(ge=10, le=10_000, description="number of requests that leave")] = 200


QUICK = {"size": ("tiny",), "requests": 16, "rounds": 1, "cancels": 10}


def measure(options: Options, say: Say) -> Result:
    from loadtests.bench.batching.subject import chosen_device, versions

    found = list(_measured(options, chosen_device(options.device), say))
    seen = next((occupancy for _, occupancy in found if occupancy is not None), None)
    return result([section for section, _ in found], seen, on=versions())


def _measured(options: Options, device: Any, say: Say) -> Iterator[tuple[Section, Occupancy | None]]:
    """The first model in full, the others briefly; the cancels on the smallest."""
    from loadtests.bench.batching import border
    from loadtests.bench.batching.subject import subject

    on_gpu = device.type != "cpu"
    usual: tuple[Size, ...] = ("1b",) if on_gpu else ("5m", "30m")
    sizes, wanted = options.size or usual, options.only or PARTS
    for size in sizes:
        say(f"the model of size {size}")
        model, widely = subject(size, device), size == sizes[0]
        rounds = options.rounds if widely else 1
        if "throughput" in wanted:
            yield throughput.measure(model, options.requests, rounds, say, widely=widely)
        if "stall" in wanted:
            yield stall.measure(model, rounds, say), None
        if "border" in wanted and widely:
            yield border.measure(model, rounds, say), None
    if "cancel" in wanted:
        smallest = sizes[0] if options.size or on_gpu else "tiny"
        yield cancel.measure(subject(smallest, device), options.cancels, say), None


def result(sections: Sequence[Section], seen: Occupancy | None, *, on: str = "") -> Result:
    parts = {section.title: section.figures for section in sections}
    blocks: list[Block] = [parts_summary(parts), parts_table(parts)]
    if seen is not None:
        blocks.append(Plot(ALT, lambda theme: _drawn(seen, theme)))
    blocks += [block for section in sections for block in section.blocks()]
    return Result("Batching on real models", parts, [*blocks, "## How it is measured\n\n" + METHOD], on)


def _drawn(seen: Occupancy, theme: Theme) -> Drawing:
    from loadtests.report.style import headline, sheet

    figure, axes = sheet(2, left=0.07, right=0.97)
    headline(figure, theme, QUESTION, f"The same requests, the same engine of {SLOTS} slots. {seen.subject}.")
    _area(axes[0], "static batches", seen.static, theme.wasted, theme)
    _area(axes[1], "continuous", seen.continuous, theme.weir, theme)
    axes[0].set_ylabel("sequences in the step")
    axes[0].set_xlim(0, max(seen.static[-1][0], seen.continuous[-1][0]))
    axes[0].set_ylim(0, SLOTS + 0.5)
    axes[0].set_yticks(range(0, SLOTS + 1, 2))
    return figure


def _area(axes: Axes, title: str, steps: Steps, color: str, theme: Theme) -> None:
    from loadtests.report.style import SMALL_PT

    ends, counts = outline(steps)
    axes.stairs(counts, ends, fill=True, color=color, linewidth=0)
    axes.set_xlabel("seconds")
    name = f"{title}: {len(steps):,} steps, {ends[-1]:.1f} s"
    axes.text(0, 1.01, name, transform=axes.transAxes, fontsize=SMALL_PT, color=theme.ink, va="bottom")


def outline(steps: Steps) -> tuple[list[float], list[int]]:
    ends, counts = [0.0], []
    for (end, count), after in zip(steps, [*(count for _, count in steps[1:]), None], strict=True):
        if count != after:
            ends.append(end)
            counts.append(count)
    return ends, counts
