"""What the recall figures are made from: the same vectors every time, and right answers that are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from loadtests.bench.search import text
from loadtests.bench.search.recall import FIRST, chosen, nearest, ways
from loadtests.bench.search.recall_page import EXACT_NAME, UNASKED, Graph, Line, Measured, graph_name, result
from loadtests.bench.vectors import Clustered
from loadtests.report.result import markdown
from services.retrieval.minilm import Floats
from services.retrieval.nearest import APPROXIMATE, EF_SEARCH, EXACT, EXACT_UP_TO, OVERFETCH

SOURCE = '''
# What a comment says counts as well, over
#   more lines than one.
def search(k):
    """Search for the nearest ones. Return x[0] += f(y) ** 2, or z[1:2] // 3!

    no capital, so this is no sentence.
    """
'''


def test_the_same_seed_gives_the_same_vectors_of_length_one() -> None:
    first, again, other = (Clustered(seed).draw(50) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.allclose(np.linalg.norm(first, axis=1), 1.0, atol=1e-5)


def test_what_counts_as_nearest_is_nearest() -> None:
    source = Clustered(1)
    kept = source.draw(30)
    for top_k in (10, 50):
        asked = source.draw(5)
        for vector, found in zip(asked, nearest(asked, kept, top_k), strict=True):
            distances = np.linalg.norm(kept - vector, axis=1)
            assert found == set(np.argsort(distances)[:top_k].tolist())


def test_sentences_are_what_begins_and_ends_like_one_and_is_mostly_words() -> None:
    assert list(text.of_source(SOURCE)) == [
        "Search for the nearest ones.",
        "What a comment says counts as well, over more lines than one.",
    ]


class Embedder:
    """A text's vector is its length, over and over; it counts what it was asked for."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, texts: Sequence[str]) -> Floats:
        self.made += len(texts)
        return np.array([[len(each)] * 384 for each in texts], np.float32)


def test_what_was_embedded_is_kept_and_what_was_cut_off_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["x" * length for length in range(20)]
    monkeypatch.setattr(text, "sentences", lambda: texts)
    said: list[str] = []
    first, second = Embedder(), Embedder()
    text.vectors(10, first, "abc", said.append, tmp_path)
    kept = tmp_path / "abc"
    kept.write_bytes(kept.read_bytes()[:-5])
    found = text.vectors(12, second, "abc", said.append, tmp_path)
    assert (first.made, second.made) == (10, 3)
    assert found[:, 0].tolist() == list(range(12))
    with pytest.raises(text.TooFewSentences, match="hold 20 sentences, and 21 are needed"):
        text.vectors(21, second, "abc", said.append, tmp_path)


@pytest.mark.parametrize(("storage", "table"), [("halfvec", "FROM vectors"), ("vector", "FROM full_vectors")])
def test_a_graph_is_compared_as_pgvector_searches_it_unasked_and_as_retrieval_does(storage: str, table: str) -> None:
    compared = ways(storage)
    usual = compared[graph_name(EF_SEARCH)]
    assert all(table in each.sql for each in compared.values())
    assert [storage == "halfvec"] * 2 == [usual.sql == APPROXIMATE, compared[EXACT_NAME].sql == EXACT]
    assert (usual.settings["hnsw.ef_search"], usual.settings["weir.rows_met"]) == (str(EF_SEARCH), str(10 * OVERFETCH))
    assert (compared[FIRST].settings["weir.rows_met"], compared[UNASKED].settings["weir.rows_met"]) == ("10", "10")
    assert compared[UNASKED].settings["hnsw.iterative_scan"] == "off"


def test_the_way_that_is_marked_is_the_one_that_retrieval_takes() -> None:
    assert chosen(EXACT_UP_TO, EXACT_UP_TO) == EXACT_NAME
    assert chosen(10 * EXACT_UP_TO, 10 * EXACT_UP_TO) == graph_name(EF_SEARCH)


def line(data: str, way: str, chunks: int, recall: float, **given: bool) -> Line:
    return Line(data, "halfvec", chunks, 100_000, way, recall, 1.0, chunks / 1000, 9.87, 100, **given)


def test_the_page_has_a_line_for_each_measurement_names_its_command_and_says_whether_recall_held() -> None:
    usual = graph_name(EF_SEARCH)
    shares = [line("text", EXACT_NAME, chunks, 1.0, is_chosen=chunks < 9_000) for chunks in (100, 1_000, 10_000)]
    shares += [line("text", usual, 10_000, 0.96, is_chosen=True), line("text", usual, 1_000, 0.912)]
    graph = Graph("text", "halfvec", 5000, 12.3, 7.4, 45.6, 1.5)
    made = result(Measured(shares, shares, [graph]))
    assert [figure.held for figure in made.figures] == [True, True, None]
    page = markdown(made, command="python -m loadtests.bench recall --rows 5000", machine="a machine")
    assert "`python -m loadtests.bench recall --rows 5000`, on a machine" in page
    assert f"| text | 10,000 | 10.0% | **{usual}** | 0.960 | 1.00 | 10.0 | 9.9 | 100 |" in page
    assert "| text | halfvec | 7 | 46 | 5,000 | 12 | 1.50 |" in page
    assert ": held. The lowest recall of retrieval's choices is 0.960" in page
    assert "is 0.912." in page
    assert "as long as an exact search of 10,000." in page
    worse = [*shares, line("text", usual, 20_000, 0.94, is_chosen=True)]
    assert ": **missed**." in markdown(result(Measured(worse, worse, [graph])), command="x", machine="y")
