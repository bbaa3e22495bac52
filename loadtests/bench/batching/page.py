"""The page docs/results/batching.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtests.bench.batching.section import Section
from loadtests.bench.batching.throughput import Occupancy
from loadtests.report.page import head, parts_summary, parts_table
from loadtests.report.page import picture as drawn

ALT = "Sequences in each step: static batches empty out before the next begins, continuous ones stay full"
METHOD = """\
The engine is stepped in this process, one thread of PyTorch, by the worker's own batch former: `static` takes eight
requests into an empty engine and runs them to the end, where those that are done leave at once and nobody joins;
`continuous` lets the next one join at every step. `generate` is transformers' own, on prompts padded to one batch, and
goes on for all until the longest is done: what one has without a server that batches. Useful tokens are those that were
asked for. All ways answer the same requests, in the same order, with the same weights; they take turns, in the other
direction each round, after a warm-up, and a figure is the median with the least and the greatest value; where none are
shown there was one round, and processor seconds are the better judge. They stand beside wall seconds: where the two
differ, something else ran on the machine.

Answers are as long as they were asked to be, whatever the model says; the weights are random, since what a step costs
does not depend on what they know. In float32 every answer must be, token for token, the one that the model gives alone,
or there is no page. The one exception is a tie: where the model itself puts the two tokens within a ten-thousandth of a
logit, the order of sums decides, and the answers go different ways from there. In half precision that is common, and
only counted. Memory is the most tokens held at once: whole pages here, padded rows with `generate`.

Cancels and the costs of process and loop are measured as in service: the worker's loop, and the engine in a process of
its own. Tokens that were computed for somebody who had left are counted in that process, by the engine's own counts.
"""


def write(target: Path, sections: Sequence[Section], seen: Occupancy | None, *, command: str, where: str) -> list[Path]:
    """The page, and its pictures beside it: none where throughput was not measured, or without matplotlib."""
    drawn = _drawn(seen, target) if seen else []
    text = page(sections, command=command, where=where, picture=target.stem if drawn else "")
    target.write_text(text, encoding="utf-8")
    return [target, *drawn]


def _drawn(seen: Occupancy, target: Path) -> list[Path]:
    try:
        from loadtests.bench.batching.picture import draw
    except ModuleNotFoundError:
        return []
    return list(draw(seen, target))


def page(sections: Sequence[Section], *, command: str, where: str, picture: str = "") -> str:
    """`picture` is the name that its files begin with, if there is one."""
    parts = {section.title: section.figures for section in sections}
    lines = [
        head("Batching on real models", command=command, machine=where), parts_summary(parts), "", *parts_table(parts),
        "",
    ]  # fmt: skip
    if picture:
        lines += [drawn(picture, ALT), ""]
    for section in sections:
        lines += section.markdown()
    return "\n".join([*lines, "## How it is measured", "", METHOD.rstrip(), ""])
