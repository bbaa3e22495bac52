"""The figures of recall and latency, and their page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadtests.report.figure import Figure, at_least
from loadtests.report.page import table
from loadtests.report.result import Block, Plot, Result
from services.retrieval.nearest import EF_SEARCH, EXACT_UP_TO, OVERFETCH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

TOP_K = 10
MIN_RECALL = 0.95
PRODUCT = "halfvec"
EXACT_NAME, UNASKED = "exact", "graph, unasked"
ALT = "Recall and latency by the tenant's share of all rows"
QUESTION = "Of the ten right rows, how many are found, and how soon?"
ABOUT = f"""\
Recall is the share of the {TOP_K} right rows that were found; rows is the share of the requested rows that were
returned at all. The right rows are computed in full precision. Chunks are those of the tenant; share is theirs in the
table. Latency is that of one client with a database on the same machine. Slow searches got fewer questions, and the
99th percentile of few is their maximum.

Retrieval searches a tenant exactly up to {EXACT_UP_TO:,} chunks, and up to more if its share of all is small; a bigger
one through the graph with ef {EF_SEARCH}, meeting {OVERFETCH} times as many rows as are requested: see
[the decision](../decisions/031-exact-or-a-graph-by-size.md). Its choice is bold. "Unasked" is the graph with pgvector's
defaults.

**Generated** vectors lie in clusters. **Text** is real: sentences of the docstrings and comments of Python's library
and of the installed packages, embedded by retrieval's own model; the questions are sentences that are not stored.
"""
STORAGES = """\
## Half precision and full precision

The same rows and questions in two tables. Retrieval stores `halfvec`, numbers of two bytes; `vector` has four.
"""
LINES = ("Data", "Chunks:", "Share:", "Way", "Recall:", "Rows:", "p50 ms:", "p99 ms:", "Questions:")
COSTS = ("Data", "Storage", "Table MB:", "Graph MB:", "Graph made of:", "in s:", "ms to insert a row:")


@dataclass(frozen=True, slots=True)
class Line:
    """One search in one tenant. `is_chosen`: retrieval would choose it."""

    data: str
    storage: str
    chunks: int
    all_chunks: int
    way: str
    recall: float
    returned: float
    p50_ms: float
    p99_ms: float
    questions: int
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """The cost of a graph of `rows` rows: seconds to build, milliseconds to insert a row, megabytes to store."""

    data: str
    storage: str
    rows: int
    build_s: float
    rows_mb: float
    graph_mb: float
    insert_ms: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """All results: each share as retrieval stores it, and the two storages side by side."""

    shares: list[Line]
    storages: list[Line]
    graphs: list[Graph]


def graph_name(ef_search: int) -> str:
    return f"graph, ef {ef_search}"


def result(measured: Measured) -> Result:
    paired = sorted(measured.storages, key=lambda line: (line.data, -line.chunks, line.way, line.storage))
    storages = (_line(line, f"{line.storage}, {line.way}", bold=line.storage == PRODUCT) for line in paired)
    blocks: list[Block] = [
        verdict(measured.shares), Plot(ALT, lambda theme: _drawn(measured.shares, theme)), ABOUT,
        table(LINES, (_line(line, line.way, bold=line.is_chosen) for line in measured.shares)),
        "## Where an exact search and the graph take the same time", *_crossings(measured.shares),
        STORAGES, table([name.replace("Way", "Storage and way") for name in LINES], storages),
        "## What storing and a graph cost", table(COSTS, map(_cost, measured.graphs)),
    ]  # fmt: skip
    return Result("Recall and latency of a search", {"recall": _figures(measured.shares)}, blocks)


def _figures(lines: Sequence[Line]) -> list[Figure]:
    taken = [line for line in lines if line.is_chosen]
    graphs = [line.recall for line in lines if line.way == graph_name(EF_SEARCH)]
    return [
        at_least("lowest recall of retrieval's choices", min(line.recall for line in taken), MIN_RECALL),
        at_least("lowest share of the requested rows", min(line.returned for line in taken), 1.0),
        Figure("lowest recall of its graph, also where it is not the choice", min(graphs)),
    ]


def verdict(lines: Sequence[Line]) -> str:
    """Whether both targets are held, in two sentences."""
    recall, rows, graph = _figures(lines)
    held = "held" if recall.held and rows.held else "**missed**"
    return (
        f"Recall of at least {MIN_RECALL} and all requested rows, whatever the tenant's share: {held}. The "
        f"lowest recall of retrieval's choices is {recall.value:.3f}, with {rows.value:.2f} of the rows; the lowest of "
        f"its graph, also where it is not the choice, is {graph.value:.3f}."
    )


def _crossings(lines: Sequence[Line]) -> Iterator[str]:
    for data in dict.fromkeys(line.data for line in lines):
        exact, graph = (
            sorted((line.chunks, line.p50_ms) for line in lines if line.data == data and line.way == way)
            for way in (EXACT_NAME, graph_name(EF_SEARCH))
        )
        (few, few_ms), (many, many_ms), (_, graph_ms) = exact[0], exact[-2], graph[-1]
        per_chunk_ms = (many_ms - few_ms) / (many - few)
        if per_chunk_ms <= 0 or graph_ms <= few_ms:
            yield f"{data.capitalize()}: not known, since the machine was too busy or the chunks were too few."
            continue
        crossing = (graph_ms - few_ms) / per_chunk_ms + few
        yield (
            f"{data.capitalize()}: an exact search takes {few_ms:.1f} ms for {few:,} chunks and {many_ms:.1f} ms for "
            f"{many:,}, {per_chunk_ms * 1000:.2f} ms for a thousand. The graph with ef {EF_SEARCH} takes "
            f"{graph_ms:.1f} ms in a tenant that has all: as long as an exact search of {crossing:,.0f}."
        )


def _line(line: Line, name: str, *, bold: bool) -> tuple[str, ...]:
    return (
        line.data, f"{line.chunks:,}", f"{line.chunks / line.all_chunks:.1%}", f"**{name}**" if bold else name,
        f"{line.recall:.3f}", f"{line.returned:.2f}", f"{line.p50_ms:.1f}", f"{line.p99_ms:.1f}", str(line.questions),
    )  # fmt: skip


def _cost(graph: Graph) -> tuple[str, ...]:
    insert = "" if graph.insert_ms is None else f"{graph.insert_ms:.2f}"
    return (
        graph.data, graph.storage, f"{graph.rows_mb:.0f}", f"{graph.graph_mb:.0f}", f"{graph.rows:,}",
        f"{graph.build_s:.0f}", insert,
    )  # fmt: skip


def _drawn(lines: Sequence[Line], theme: Theme) -> Drawing:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from loadtests.report.style import SMALL_PT, headline, sheet

    data = lines[-1].data
    shown = [line for line in lines if line.data == data]
    note = f"{max(line.chunks for line in shown):,} rows, {data}; by the share of them that the tenant has."
    figure, (recall,) = sheet(1, left=0.07, right=0.38)
    latency = figure.add_axes(recall.get_position().translated(0.39, 0).bounds)
    headline(figure, theme, QUESTION, note)
    for name, style in _styles(theme).items():
        points = sorted((100 * line.chunks / line.all_chunks, line) for line in shown if line.way == name)
        recall.plot([x for x, _ in points], [line.recall for _, line in points], label=name, **style)
        latency.plot([x for x, _ in points], [line.p50_ms for _, line in points], **style)
    recall.axhline(MIN_RECALL, color=theme.quiet, linewidth=0.8)
    recall.text(
        100, MIN_RECALL - 0.02, f"target: {MIN_RECALL}", color=theme.quiet, fontsize=SMALL_PT, va="top", ha="right"
    )
    _label(recall, "recall")
    _label(latency, "median of the latency, ms")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    latency.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="center right", frameon=False, labelcolor="linecolor", fontsize=SMALL_PT)
    return figure


def _styles(theme: Theme) -> dict[str, dict[str, Any]]:
    strokes = {
        EXACT_NAME: (theme.useful, (5, 3), 2.0), graph_name(40): (theme.tenants[1], (6, 2), 1.6),
        graph_name(EF_SEARCH): (theme.weir, (), 2.4), graph_name(200): (theme.tenants[2], (3, 1), 1.6),
        UNASKED: (theme.wasted, (1, 1.5), 2.0),
    }  # fmt: skip
    return {
        name: {"color": color, "linestyle": (0, dash), "linewidth": width}
        for name, (color, dash, width) in strokes.items()
    }


def _label(axes: Axes, name: str) -> None:
    from matplotlib.ticker import FuncFormatter

    from loadtests.report.style import SMALL_PT

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("% of all rows are the tenant's")
    axes.set_title(name, loc="left", fontsize=SMALL_PT)
