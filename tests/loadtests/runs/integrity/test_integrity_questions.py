"""Questions for two routes, each with its nonce; as many as were wanted; and two right answers where there are two."""

from __future__ import annotations

import json

import pytest

from loadtests.cluster.making import ASK, CHAT
from loadtests.judging.answers import Verdict
from loadtests.judging.nonces import nonce, right
from loadtests.load.connection import Exchange
from loadtests.load.plan import Plan
from loadtests.runs.integrity.questions import (
    MAX_TOKENS,
    WITHOUT_DOCUMENTS,
    Kept,
    Questions,
    asks,
    plan_of,
    verdict_on,
)
from services.contracts.generate import GenerateRequest, Message
from services.worker.engines.extractive import answer
from services.worker.engines.tokenizer import count_tokens

URL = "http://127.0.0.1:1"


def plan() -> Plan:
    return plan_of(10, 100, 2000, seed=5)


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_there_are_exactly_as_many_as_were_wanted_in_the_order_of_time(count: int) -> None:
    times = [ask.at_s for ask in asks(plan(), count)]
    assert len(times) == count
    assert times == sorted(times)
    assert max(times) < 10


def test_both_routes_are_asked_whole_and_streamed() -> None:
    made = list(asks(plan(), 1000))
    kinds = {(ask.tenant.name, ask.stream) for ask in made}
    assert kinds == {(name, stream) for name in (CHAT, ASK) for stream in (True, False)}


def exchange(route: str, number: int, *, text: str, stream: bool = False) -> Exchange:
    ask = next(one for one in asks(plan(), 100) if one.tenant.name == route and not one.stream)
    made = Exchange(Questions(URL).bytes_of(ask, number), lambda exchange: None)
    kept = made.answer = Kept()
    kept.status = 200
    usage = {"prompt_tokens": 9, "completion_tokens": 9}
    body = {"text": text, "usage": usage}
    if route == CHAT:
        body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}
    kept.body(json.dumps(body).encode())
    return made


def test_a_request_carries_its_nonce_as_its_id_and_in_its_question() -> None:
    head, body = exchange(ASK, 7, text="").request.split(b"\r\n\r\n")
    word = nonce(8)
    assert f"x-request-id: {word}\r\n".encode() in head
    assert json.loads(body)["query"] == word


def test_an_answer_without_documents_is_right_for_ask_and_wrong_for_chat() -> None:
    word = nonce(8)
    without = WITHOUT_DOCUMENTS.format(nonce=word)
    assert verdict_on(exchange(ASK, 7, text=right(word))) is Verdict.RIGHT
    assert verdict_on(exchange(ASK, 7, text=without)) is Verdict.RIGHT
    assert verdict_on(exchange(CHAT, 7, text=right(word))) is Verdict.RIGHT
    assert verdict_on(exchange(CHAT, 7, text=without)) is Verdict.WRONG


def test_somebody_elses_answer_is_foreign_and_one_that_is_said_twice_is_wrong() -> None:
    assert verdict_on(exchange(ASK, 7, text=right(nonce(9)))) is Verdict.FOREIGN
    assert verdict_on(exchange(ASK, 7, text=2 * right(nonce(8)))) is Verdict.WRONG


def test_the_engine_says_without_documents_what_is_taken_for_right_and_has_the_tokens_for_it() -> None:
    word = nonce(1)
    message = Message("user", f"Question: {word}")
    said = answer(GenerateRequest(id="x", tenant="t", deadline_ms=1, max_tokens=1, messages=[message]))
    assert said == WITHOUT_DOCUMENTS.format(nonce=word)
    assert count_tokens(said) < MAX_TOKENS
