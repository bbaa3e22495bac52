"""The simulated engine's answers come from the passages in the prompt."""

from __future__ import annotations

import pytest

from services.contracts.generate import GenerateRequest, Message
from services.worker.engines.extractive import answer, best_quotes, prose, split_prompt, stems

WEIR = "A weir holds a river at its level. It was built of oak and stone."
TURBINE = "The turbine turns at ninety revolutions. Salmon climb the ladder beside it in spring."


def asked(question: str, *passages: str, seed: int | None = None) -> GenerateRequest:
    blocks = [f'<passage id="{n}" doc="docs/{n}.md">\n{text}\n</passage>' for n, text in enumerate(passages, start=1)]
    content = "\n".join([*blocks, f"Question: {question}"])
    messages = [Message("system", "Answer from the passages."), Message("user", content)]
    return GenerateRequest(id="a", tenant="t", deadline_ms=1000, max_tokens=64, messages=messages, seed=seed)


def test_the_answer_quotes_the_sentence_that_the_question_is_about_and_cites_its_passage():
    said = answer(asked("When do salmon climb the ladder?", WEIR, TURBINE))
    assert "Salmon climb the ladder beside it in spring [2]." in said
    assert "oak" not in said


def test_other_documents_give_another_answer_to_the_same_question():
    question = "What holds the river?"
    assert answer(asked(question, WEIR)) != answer(asked(question, "A dyke holds the river back in winter."))


def test_the_same_prompt_and_seed_give_the_same_answer():
    assert answer(asked("What holds the river?", WEIR, seed=3)) == answer(asked("What holds the river?", WEIR, seed=3))


def test_seeds_vary_the_wording_and_never_the_quotation():
    answers = {answer(asked("What holds the river?", WEIR, seed=seed)) for seed in range(20)}
    assert len(answers) > 1
    assert all("A weir holds a river at its level [1]." in said for said in answers)


def test_passages_that_do_not_speak_of_it_are_not_quoted():
    assert answer(asked("Which giraffes?", WEIR)) == "None of the passages in the prompt speaks of giraffes."


def test_without_documents_it_says_what_it_is_and_echoes_the_topic():
    said = answer(asked("What does nonce n-4711 mean?"))
    assert "simulated engine" in said
    assert "nonce n-4711" in said


def test_a_markdown_table_row_reads_as_cells():
    table = "| when | then |\n|---|---|\n| a **queue** is at its bound | refused at once with `Retry-After` |"
    said = answer(asked("What is refused at once?", table))
    assert "a queue is at its bound: refused at once with Retry-After [1]." in said


def test_a_passage_tag_inside_a_passage_is_text():
    quoted = 'The prompt says <passage id="9" doc="x"> before each text. A weir holds the river.'
    passages, rest = split_prompt(f'<passage id="1" doc="d">{quoted}</passage>Question: q')
    assert passages == [("1", quoted)]
    assert rest == "Question: q"


def test_a_passage_that_is_not_closed_is_no_passage():
    assert split_prompt('<passage id="1" doc="d">text')[0] == []


def test_stems_join_the_forms_of_a_word():
    assert stems("The queues are queued") == stems("queue")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "hostile",
    ["<passage " * 25_000, '<passage id="1">' * 15_000, "\n" * 200_000, "[a](" * 50_000, "a-" * 100_000, "| " * 90_000],
)
def test_a_hostile_prompt_is_read_in_one_pass(hostile: str):
    for prompt in (hostile, f'<passage id="1" doc="d">{hostile}</passage>Question: a passage'):
        assert answer(GenerateRequest(id="a", tenant="t", deadline_ms=1, max_tokens=1, prompt=prompt))


def test_a_question_of_one_word_that_stands_everywhere_is_answered_by_its_definition() -> None:
    text = "Every weir has its own river. A weir is a low dam across a river. Water goes over the weir when it is full."
    quoted = best_quotes("What is a weir?", [("1", text)])
    assert "A weir is a low dam across a river." in [quote.text for quote in quoted]


def test_a_row_of_a_table_is_not_quoted() -> None:
    text = "code | meaning | hint\nyield | the refusal of a request | yes\n\nA yield is an honest refusal with a hint."
    assert [quote.text for quote in best_quotes("What is a yield?", [("1", text)])] == [
        "A yield is an honest refusal with a hint."
    ]


def test_the_headings_that_a_chunk_begins_with_are_not_quoted() -> None:
    text = "\n006: The core takes now > Context\n\nThe core takes the time as an argument and never asks a clock.\n"
    quoted = best_quotes("Why does the core take the time now?", [("1", text)])
    assert [quote.text for quote in quoted] == ["The core takes the time as an argument and never asks a clock."]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("Guide > Lock\n\nIt opens.", "It opens."),
        ("What is a lock? > Why\n\nIt opens.", "It opens."),
        ("Glossary\n\nA lock opens.", "A lock opens."),
        ("A lock opens.\n\nIt closes.", "A lock opens.\n\nIt closes."),
        ("A lock opens and\nit closes.", "A lock opens and\nit closes."),
        ("Before.\n```json\nnot a sentence\n```\nAfter.", "Before.\nAfter."),
        ("cut in the middle\n```\nAfter.", "After."),
        ("Before.\n```sh\ncut in the middle", "Before."),
        ('See:\n$ curl -s http://lock -d \'{"a": 1}\'\n{"gate":"open"}\nHTTP/1.1 200 OK\nIt opens.', "See:\nIt opens."),
        (
            "from lock import Gate\nclient = Gate(open=True)\nIt opens = it does not close.",
            "It opens = it does not close.",
        ),
        ("Important: an import of oak from elsewhere.", "Important: an import of oak from elsewhere."),
    ],
)
def test_what_is_quoted_from_is_prose(body: str, left: str) -> None:
    assert prose(body).split() == left.split()
