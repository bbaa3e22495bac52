"""What the recall figures are made from: the same vectors every time, and right answers that are right."""

from __future__ import annotations

import numpy as np

from bench.recall.__main__ import page
from bench.recall.data import Source, questions
from bench.recall.measure import Graph, Line, Measured
from bench.recall.subject import ways
from services.retrieval.nearest import EXACTLY


def test_the_same_seed_gives_the_same_vectors_of_length_one() -> None:
    first, again, other = (Source(seed).draw(50) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.allclose(np.linalg.norm(first, axis=1), 1.0, atol=1e-5)


def test_what_counts_as_nearest_is_nearest() -> None:
    source = Source(1)
    kept = source.draw(30)
    for asked in questions(source, kept, 5, 10):
        distances = np.linalg.norm(kept - asked.vector, axis=1)
        assert asked.nearest == set(np.argsort(distances)[:10].tolist())


def test_a_graph_is_compared_as_pgvector_searches_it_unasked_and_as_retrieval_does() -> None:
    for storage in ("vector", "halfvec"):
        compared = ways(10, (40, 100), storage)
        assert compared["exact"] is EXACTLY
        assert compared["graph, unasked"].settings["hnsw.iterative_scan"] == "off"
        assert compared["graph, ef 100"].settings["hnsw.iterative_scan"] == "relaxed_order"
        assert compared["graph, ef 100"].settings["hnsw.ef_search"] == "100"
        assert ("halfvec" in compared["graph, ef 100"].sql) == (storage == "halfvec")


def test_the_page_has_a_line_for_each_measurement_and_names_its_command() -> None:
    line = Line(1000, 0.01, "vector", "exact", 0.985, 1.0, 1.24, 9.87)
    graph = Graph("vector", 5000, 12.3, 45.6, 1.5)
    text = page(Measured([line], [graph], 0.07), "python -m bench.recall --rows 5000")
    assert "`python -m bench.recall --rows 5000`" in text
    assert "| 1,000 | 1.0% | vector | exact | 0.985 | 1.00 | 1.2 | 9.9 |" in text
    assert "| vector | 5,000 | 12 | 46 | 1.50 |" in text
