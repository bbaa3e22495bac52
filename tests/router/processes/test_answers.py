"""One answer for several: passed on where all agree, and said by process where they do not."""

from __future__ import annotations

import json

from services.router.processes.answers import DIFFER, Answer, agreed

DONE = Answer(200, b'{"admission":false}')


def test_what_all_have_done_is_answered_as_one_does() -> None:
    assert agreed({0: DONE, 1: DONE}) == DONE


def test_what_all_refuse_is_refused_as_one_does() -> None:
    refusal = Answer(404, b'{"error":{"message":"tenant: no tenant has this name"}}')
    assert agreed({0: refusal, 1: refusal}) == refusal


def test_where_they_differ_each_is_named() -> None:
    found = agreed({0: DONE, 2: Answer(0, b"no answer in 5 s")})
    assert found.status == DIFFER
    told = json.loads(found.body)
    assert told["error"]["code"] == "processes_differ"
    assert told["processes"] == [
        {"process": 0, "status": 200, "answer": {"admission": False}},
        {"process": 2, "status": 0, "answer": "no answer in 5 s"},
    ]


def test_no_answer_of_all_is_no_agreement() -> None:
    silence = Answer(0, b"no answer")
    assert agreed({0: silence, 1: silence}).status == DIFFER
