"""The embedder's arithmetic, against float64, against published figures, and against itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.retrieval.minilm import (
    MAX_TOKENS,
    PACKED_TOKENS,
    Floats,
    MiniLM,
    ModelUnusable,
    find_model,
    packable,
)
from tests.retrieval.minilm_reference import TEXTS, reference_vector

VECTORS = json.loads((Path(__file__).parent / "data" / "minilm_vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model() -> MiniLM:
    try:
        return MiniLM(find_model())
    except ModelUnusable as error:
        pytest.skip(str(error))


def embed(model: MiniLM, *texts: str) -> Floats:
    return model.embed([model.tokenize(text) for text in texts])


def test_vectors_are_those_of_a_float64_computation_to_a_millionth(model: MiniLM) -> None:
    assert list(VECTORS) == TEXTS
    difference = np.abs(embed(model, *VECTORS) - np.array(list(VECTORS.values())))
    assert difference.max() < 1e-6


def test_the_committed_vectors_are_what_the_reference_computes(model: MiniLM) -> None:
    text = "It's so sunny outside!"
    assert np.allclose(reference_vector(find_model(), text), VECTORS[text], atol=1e-8)


def test_similarities_are_those_that_the_makers_of_the_model_publish(model: MiniLM) -> None:
    """The quickstart of sentence-transformers prints these for this model."""
    vectors = embed(model, "The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    assert np.allclose(vectors @ vectors.T, [[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]], atol=1e-4)


def test_a_text_has_the_same_vector_in_any_company(model: MiniLM) -> None:
    together = embed(model, *TEXTS)
    alone = np.vstack([embed(model, text) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-6
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_a_long_text_is_cut_at_the_limit_and_still_ends_with_its_mark(model: MiniLM) -> None:
    ids = model.tokenize("overload " * 1000)
    assert len(ids) == MAX_TOKENS
    assert (ids[0], ids[-1]) == (101, 102)  # [CLS] and [SEP]


def test_tokens_are_counted_without_marks_and_without_a_limit(model: MiniLM) -> None:
    assert model.count_tokens("overload " * 1000) == 1000 * model.count_tokens("overload")
    assert model.count_tokens("") == 0


@given(st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=40))
@settings(max_examples=200)
def test_a_pass_takes_at_least_one_text_and_never_more_tokens_than_fit(lengths: list[int]) -> None:
    count = packable(lengths)
    assert 1 <= count <= len(lengths)
    assert count == 1 or sum(lengths[:count]) <= PACKED_TOKENS
    assert count == len(lengths) or sum(lengths[: count + 1]) > PACKED_TOKENS
