"""The page docs/results/recall.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.bench.recall.measure import TOP_K, Graph, Line, Measured
from loadtests.bench.recall.subject import PRODUCT
from loadtests.bench.recall.ways import EXACT_NAME, graph_name
from loadtests.report.page import picture as drawn
from services.retrieval.nearest import EF_SEARCH, EXACT_UP_TO, MET

WANTED = 0.95
HEAD = """\
# Recall and latency of a search

Written by `{command}`, on {machine}.

{verdict}

{picture}Recall is the share of the {top_k} right rows that was found, rows the share of the asked for rows that came at
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
STORAGES = """
## Half precision and full precision

The same rows and questions in two tables. Retrieval stores `halfvec`, numbers of two bytes; `vector` has four.
"""


def page(measured: Measured, command: str, machine: str, *, picture: bool) -> str:
    """The whole of it."""
    head = HEAD.format(
        command=command, machine=machine, verdict=verdict(measured.shares), picture=PICTURE if picture else "",
        top_k=TOP_K, exact=EXACT_UP_TO, ef=EF_SEARCH, met=MET,
    )  # fmt: skip
    crossing = "\n\n".join(_crossings(measured.shares))
    return "\n".join(
        [
            head,
            *SHARES_TABLE,
            *(_line(line, line.way, bold=line.is_chosen) for line in measured.shares),
            "\n## Where an exact search and the graph take the same time\n",
            crossing,
            STORAGES,
            *STORAGES_TABLE,
            *(_line(line, f"{line.storage}, {line.way}", bold=line.storage == PRODUCT) for line in _paired(measured)),
            "\n## What storing and a graph cost\n",
            *COSTS_TABLE,
            *map(_cost, measured.graphs),
            "",
        ]
    )


PICTURE = drawn("recall", "Recall and latency by the tenant's share of all rows") + "\n\n"
SHARES_TABLE = (
    "| Data | Chunks | Share | Way | Recall | Rows | p50 ms | p99 ms | Questions |",
    "|---|---:|---:|---|---:|---:|---:|---:|---:|",
)
STORAGES_TABLE = (SHARES_TABLE[0].replace("Way", "Storage and way"), SHARES_TABLE[1])
COSTS_TABLE = (
    "| Data | Storage | Table MB | Graph MB | Graph made of | in s | ms to insert a row |",
    "|---|---|---:|---:|---:|---:|---:|",
)


def verdict(lines: Sequence[Line]) -> str:
    """Whether what was to be proved is proved, in a sentence."""
    taken = [line for line in lines if line.is_chosen]
    graphs = [line for line in lines if line.way == graph_name(EF_SEARCH)]
    recall, rows = min(line.recall for line in taken), min(line.returned for line in taken)
    held = "held" if recall >= WANTED and rows == 1 else "**missed**"
    return (
        f"Recall of at least {WANTED} and all rows that were asked for, whatever the tenant's share: {held}. The "
        f"least of retrieval's choices is {recall:.3f}, with {rows:.2f} of the rows; the least of its graph, also "
        f"where it is not the choice, is {min(line.recall for line in graphs):.3f}."
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


def _line(line: Line, name: str, *, bold: bool) -> str:
    cells = (
        line.data, f"{line.chunks:,}", f"{line.chunks / line.all_chunks:.1%}", f"**{name}**" if bold else name,
        f"{line.recall:.3f}", f"{line.returned:.2f}", f"{line.p50_ms:.1f}", f"{line.p99_ms:.1f}", str(line.questions),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _cost(graph: Graph) -> str:
    insert = "" if graph.insert_ms is None else f"{graph.insert_ms:.2f}"
    cells = (
        graph.data, graph.storage, f"{graph.size.rows_mb:.0f}", f"{graph.size.graph_mb:.0f}",
        f"{graph.rows:,}", f"{graph.build_s:.0f}", insert,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"
