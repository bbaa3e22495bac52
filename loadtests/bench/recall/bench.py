"""How right and how fast a search is, by the tenant's share of all rows: measured, and as a page.

Real text is embedded first, in a quarter of an hour for 100,000 rows, once: `--embed` does only that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from loadtests.bench.recall.data import Kept, Source
from loadtests.bench.recall.embedded import TooFewSentences, embedded
from loadtests.bench.recall.measure import PARTS, TOP_K, Graph, Line, Measured, needed
from loadtests.bench.recall.measure import measure as searched
from loadtests.bench.recall.subject import PRODUCT, Subject
from loadtests.bench.recall.ways import EFFORTS, EXACT_NAME, UNASKED, graph_name
from loadtests.bench.stores import postgres
from loadtests.bench.vectors import Clustered
from loadtests.report.figure import Figure, at_least
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Block, Plot, Result
from services.retrieval.database import connect
from services.retrieval.minilm import MiniLM, find_model
from services.retrieval.nearest import EF_SEARCH, EXACT_UP_TO, MET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from loadtests.report.style import Theme

SEED = 1
WANTED = 0.95
ALT = "Recall and latency by the tenant's share of all rows"
QUESTION = "Of the ten right rows, how many are found, and how soon?"
ABOUT = """\
Recall is the share of the {top_k} right rows that was found, rows the share of the asked for rows that came at
all; what is right is computed in full precision. Chunks are those of the tenant; share is theirs in the table. Latency
is that of one client whose database is on the same machine. A way that is slow was asked fewer questions, and the 99th
percentile of few is their worst.

Retrieval searches a tenant exactly up to {exact:,} chunks, and up to more where its share of all is small; a bigger one
through the graph with ef {ef}, meeting {met} times as many rows as are asked for: see
[the decision](../decisions/031-exact-or-a-graph-by-size.md). Bold is the way it takes. "Unasked" is the graph as
pgvector searches it by default.

**Generated** vectors lie in clusters. **Text** is real: sentences of the docstrings and comments of Python's library
and of the installed packages, embedded by retrieval's own model; the questions are sentences that are not stored.
"""
STORAGES = """\
## Half precision and full precision

The same rows and questions in two tables. Retrieval stores `halfvec`, numbers of two bytes; `vector` has four.
"""
LINES = ("Data", "Chunks:", "Share:", "Way", "Recall:", "Rows:", "p50 ms:", "p99 ms:", "Questions:")
COSTS = ("Data", "Storage", "Table MB:", "Graph MB:", "Graph made of:", "in s:", "ms to insert a row:")


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    rows: Annotated[int, msgspec.Meta(ge=PARTS[0] * 2, description="chunks of the biggest tenant")] = 100_000
    questions: Annotated[int, msgspec.Meta(ge=10, description="questions for each line of the table")] = 100
    embed: Annotated[bool, msgspec.Meta(description="only embed the text, and keep it")] = False


QUICK = {"rows": 2 * PARTS[0], "questions": 10}


def measure(options: Options, say: Say) -> Result:
    """Among generated vectors, and among those of real text. It ends the process where there is too little text."""
    try:
        text = embedded(needed(options.rows, options.questions), say, MiniLM(find_model()))
    except TooFewSentences as error:
        raise SystemExit(f"{error}: choose fewer --rows") from None
    if options.embed:
        raise SystemExit(0)
    sources: dict[str, Source] = {"generated": Clustered(SEED), "text": Kept(text)}
    with postgres() as database:
        return result(asyncio.run(_measured(database.url, sources, options, say)))


async def _measured(url: str, sources: Mapping[str, Source], options: Options, say: Say) -> Measured:
    connection = await connect(url, timeout_s=10.0, application="bench")
    try:
        subject = Subject(connection)
        await subject.prepare()
        return await searched(subject, sources, options.rows, options.questions, say)
    finally:
        await connection.close()


def result(measured: Measured) -> Result:
    """As a page."""
    about = ABOUT.format(top_k=TOP_K, exact=EXACT_UP_TO, ef=EF_SEARCH, met=MET)
    storages = (_line(line, f"{line.storage}, {line.way}", bold=line.storage == PRODUCT) for line in _paired(measured))
    blocks: list[Block] = [
        verdict(measured.shares), Plot(ALT, lambda theme: _drawn(measured.shares, theme)), about,
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
        at_least("least recall of retrieval's choices", min(line.recall for line in taken), WANTED),
        at_least("least share of the asked for rows", min(line.returned for line in taken), 1.0),
        Figure("least recall of its graph, also where it is not the choice", min(graphs)),
    ]


def verdict(lines: Sequence[Line]) -> str:
    """Whether what was to be proved is proved, in a sentence."""
    recall, rows, graph = _figures(lines)
    held = "held" if recall.held and rows.held else "**missed**"
    return (
        f"Recall of at least {WANTED} and all rows that were asked for, whatever the tenant's share: {held}. The "
        f"least of retrieval's choices is {recall.value:.3f}, with {rows.value:.2f} of the rows; the least of its "
        f"graph, also where it is not the choice, is {graph.value:.3f}."
    )


def _crossings(lines: Sequence[Line]) -> Iterator[str]:
    for data in dict.fromkeys(line.data for line in lines):
        exact = sorted((line.chunks, line.p50_ms) for line in lines if line.data == data and line.way == EXACT_NAME)
        graph = max(
            (line.chunks, line.p50_ms) for line in lines if line.data == data and line.way == graph_name(EF_SEARCH)
        )
        (few, few_ms), (many, many_ms) = exact[0], exact[-2]
        per_chunk_ms = (many_ms - few_ms) / (many - few)
        if per_chunk_ms <= 0 or graph[1] <= few_ms:
            yield f"{data.capitalize()}: the machine was too busy, or the chunks were too few, to say."
            continue
        crossing = (graph[1] - few_ms) / per_chunk_ms + few
        yield (
            f"{data.capitalize()}: an exact search takes {few_ms:.1f} ms for {few:,} chunks and {many_ms:.1f} ms for "
            f"{many:,}, {per_chunk_ms * 1000:.2f} ms for a thousand. The graph with ef {EF_SEARCH} takes "
            f"{graph[1]:.1f} ms in a tenant that has all: as long as an exact search of {crossing:,.0f}."
        )


def _paired(measured: Measured) -> list[Line]:
    """The two ways of storing below each other."""
    return sorted(measured.storages, key=lambda line: (line.data, -line.chunks, line.way, line.storage))


def _line(line: Line, name: str, *, bold: bool) -> tuple[str, ...]:
    return (
        line.data, f"{line.chunks:,}", f"{line.chunks / line.all_chunks:.1%}", f"**{name}**" if bold else name,
        f"{line.recall:.3f}", f"{line.returned:.2f}", f"{line.p50_ms:.1f}", f"{line.p99_ms:.1f}", str(line.questions),
    )  # fmt: skip


def _cost(graph: Graph) -> tuple[str, ...]:
    insert = "" if graph.insert_ms is None else f"{graph.insert_ms:.2f}"
    return (
        graph.data, graph.storage, f"{graph.size.rows_mb:.0f}", f"{graph.size.graph_mb:.0f}",
        f"{graph.rows:,}", f"{graph.build_s:.0f}", insert,
    )  # fmt: skip


def _drawn(lines: Sequence[Line], theme: Theme) -> Drawing:
    """Of two kinds of data, the last; a line for each way."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from loadtests.report.style import SMALL_PT, headline, sheet

    data = lines[-1].data
    shown = [line for line in lines if line.data == data]
    note = f"{max(line.chunks for line in shown):,} rows, {data}; by the share of them that the tenant has."
    figure, (recall,) = sheet(1, left=0.07, right=0.38)
    latency = figure.add_axes(recall.get_position().translated(0.39, 0).bounds)
    headline(figure, theme, QUESTION, note)
    for name, style in _styles(theme).items():
        at = sorted((100 * line.chunks / line.all_chunks, line) for line in shown if line.way == name)
        recall.plot([x for x, _ in at], [line.recall for _, line in at], label=name, **style)
        latency.plot([x for x, _ in at], [line.p50_ms for _, line in at], **style)
    recall.axhline(WANTED, color=theme.quiet, linewidth=0.8)
    recall.text(100, WANTED - 0.02, f"wanted: {WANTED}", color=theme.quiet, fontsize=SMALL_PT, va="top", ha="right")
    _label(recall, "recall")
    _label(latency, "median of the latency, ms")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    latency.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="center right", frameon=False, labelcolor="linecolor", fontsize=SMALL_PT)
    return figure


def _styles(theme: Theme) -> dict[str, dict[str, Any]]:
    """Each has its colour and its dash."""
    efforts = [
        {"color": color, "linestyle": dash, "linewidth": width}
        for color, dash, width in (
            (theme.tenants[1], (0, (6, 2)), 1.6), (theme.weir, (0, ()), 2.4), (theme.tenants[2], (0, (3, 1)), 1.6)
        )
    ]  # fmt: skip
    graphs = dict(zip(map(graph_name, EFFORTS), efforts, strict=True))
    exact = {"color": theme.useful, "linestyle": (0, (5, 3)), "linewidth": 2.0}
    return {EXACT_NAME: exact, **graphs, UNASKED: {"color": theme.wasted, "linestyle": (0, (1, 1.5)), "linewidth": 2.0}}


def _label(axes: Axes, name: str) -> None:
    from matplotlib.ticker import FuncFormatter

    from loadtests.report.style import SMALL_PT

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("% of all rows are the tenant's")
    axes.set_title(name, loc="left", fontsize=SMALL_PT)
