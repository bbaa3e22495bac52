"""The questions of bench/hybrid can be answered from the documents, and its figures are what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.hybrid.measure import FIRST, LOOKED_AT, Places, Question, documents, place, read
from services.retrieval.minilm import MiniLM, ModelUnusable, find_model

MOST_ANSWERS = 15


@pytest.fixture
def model() -> Path:
    try:
        return find_model()
    except ModelUnusable as error:
        pytest.skip(str(error))


def test_each_question_has_an_answer_in_the_documents_and_few_of_them(model: Path) -> None:
    passages = [(doc_id, text) for doc_id, texts in documents(MiniLM(model)).items() for text in texts]
    questions = read()
    assert len({question.asked for question in questions}) == len(questions) >= 40
    for question in questions:
        answers = sum(question.answered(*passage) for passage in passages)
        assert 1 <= answers <= MOST_ANSWERS, f"{question.asked}: {answers} passages answer it"


def test_a_place_is_that_of_the_first_passage_that_answers() -> None:
    question = Question("names", "asked", frozenset({"a.md"}), "answer")
    found = [("b.md", "an answer"), ("a.md", "no"), ("a.md", "the answer"), ("a.md", "answer again")]
    assert place(question, found) == 3
    assert place(question, found[:2]) == 0


def test_figures_are_the_mean_reciprocal_place_and_the_share_among_the_first() -> None:
    places = Places("words", "names", [1, 2, 0, FIRST, LOOKED_AT])
    assert places.mrr == pytest.approx((1 + 1 / 2 + 1 / FIRST + 1 / LOOKED_AT) / 5)
    assert places.recall == 3 / 5
