"""The questions of the hybrid bench can be answered from the documents, and its figures are what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.search.hybrid import FIRST, LOOKED_AT, Cost, Places, Question, documents, read, result
from loadtests.report.result import markdown
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
    questions = [question for some in read().values() for question in some]
    assert len({question.asked for question in questions}) == len(questions) >= 40
    for question in questions:
        answers = sum(question.answered(*passage) for passage in passages)
        assert 1 <= answers <= MOST_ANSWERS, f"{question.asked}: {answers} passages answer it"


def test_a_place_is_that_of_the_first_passage_that_answers() -> None:
    question = Question("asked", frozenset({"a.md"}), "answer")
    found = [("b.md", "an answer"), ("a.md", "no"), ("a.md", "the answer"), ("a.md", "answer again")]
    assert question.place(found) == 3
    assert question.place(found[:2]) == 0


def test_figures_are_the_mean_reciprocal_place_and_the_share_among_the_first() -> None:
    places = Places("words", "names", [1, 2, 0, FIRST, LOOKED_AT])
    assert places.mrr == pytest.approx((1 + 1 / 2 + 1 / FIRST + 1 / LOOKED_AT) / 5)
    assert places.recall == 3 / 5


def test_the_page_shows_what_is_found_where_the_words_harm_and_what_they_cost() -> None:
    places = [Places("vectors", "names", [1, 2]), Places("words", "names", [0, 0]), Places("both", "names", [0, 1])]
    questions = {"names": [Question(asked, frozenset(), "") for asked in ("one", "two")]}
    made = result(places, questions, [Cost("exactly", "a name", 2.0, 5.0)], (10, 20, 1000), on="a model")
    text = markdown(made, command="python -m loadtests.bench hybrid", machine="here")
    assert "| names | vectors | 0.750 | 100% |" in text
    assert "| one | 1 | over 10 |" in text
    assert "| two |" not in text
    assert "| exactly | a name | 2.0 | 5.0 | 2.50 |" in text
    assert "10 documents of 20 chunks, and 2 questions" in text
    assert "among 1,000 chunks" in text
