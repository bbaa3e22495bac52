"""The judge: it believes the right answer and no other, and knows an honest no."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.judging.answers import Received, Verdict, judge
from loadtests.judging.nonces import nonce, prompt, right, tokens
from services.contracts.generate import GenerateRequest, Message
from services.worker.engines.extractive import answer

MARK = nonce(7)
TEXT = right(MARK)
MAX = 40
USAGE = {"prompt_tokens": 9, "completion_tokens": 14}
DONE = "data: [DONE]\n\n"
ERROR = 'event: error\ndata: {"error": {"code": "upstream_failed", "message": "cut"}}\n\n'


def whole(text: str = TEXT, finish: str | None = "stop", **changed: Any) -> bytes:
    choice = {"message": {"content": text}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": USAGE, **changed}).encode()


def chunk(text: str = "", finish: str | None = None) -> str:
    choice = {"delta": {"content": text} if text else {}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def stream(*events: str) -> Received:
    return Received(200, "".join(events).encode(), stream=True)


WORDS = [chunk(text) for text in tokens(TEXT)]
GOOD = [*WORDS, chunk(finish="stop"), DONE]


def verdict(heard: Received) -> Verdict:
    return judge(heard, MARK, MAX)


@given(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
def test_two_requests_have_different_nonces(one: int, other: int) -> None:
    assert (nonce(one) == nonce(other)) == (one == other)
    assert "".join(tokens(right(nonce(one)))) == right(nonce(one))


@given(st.integers(0, 2**60 - 1))
def test_the_simulated_engine_gives_the_answer_that_is_expected(number: int) -> None:
    mark = nonce(number)
    asked = GenerateRequest("r", "t", 1000, MAX, messages=[Message("user", prompt(mark))])
    assert answer(asked) == right(mark)


def test_the_right_answer_is_believed_whole_and_streamed() -> None:
    assert verdict(Received(200, whole(), stream=False)) is Verdict.RIGHT
    assert verdict(stream(*GOOD)) is Verdict.RIGHT
    assert verdict(stream(": keep-alive\n\n", *GOOD)) is Verdict.RIGHT


def test_an_ask_is_believed_by_its_own_events() -> None:
    said = [f"event: token\ndata: {json.dumps({'text': text})}\n\n" for text in tokens(TEXT)]
    reply = f"event: answer\ndata: {json.dumps({'text': TEXT, 'usage': USAGE})}\n\n"
    assert verdict(stream(*said, reply, DONE)) is Verdict.RIGHT
    assert verdict(stream(*said[1:], reply, DONE)) is Verdict.WRONG


WRONG = {
    "another text": Received(200, whole(TEXT[:-1]), stream=False),
    "no finish": Received(200, whole(finish=None), stream=False),
    "no tokens counted": Received(200, whole(usage={"prompt_tokens": 9, "completion_tokens": 0}), stream=False),
    "too many counted": Received(200, whole(usage={"prompt_tokens": 9, "completion_tokens": 41}), stream=False),
    "no JSON": Received(200, b"<html>", stream=False),
    "nothing": Received(200, b"", stream=False),
    "our own fault": Received(500, b'{"error": {"code": "internal_error"}}', stream=False),
    "a status without a reason": Received(503, b"", stream=False),
    "a stream without its first word": stream(*GOOD[1:]),
    "a word twice": stream(GOOD[0], *GOOD),
    "marked as whole too early": stream(*GOOD[:3], *GOOD[-2:]),
    "[DONE] without a finish": stream(*WORDS, DONE),
    "a finish without [DONE]": stream(*GOOD[:-1]),
    "an error and then [DONE]": stream(*GOOD[:3], ERROR, DONE),
    "an error after a finish": stream(*GOOD[:-1], ERROR),
    "more after the end": stream(*GOOD, GOOD[0]),
    "an error after a wrong text": stream(chunk("Nobody"), ERROR),
    "half an event": stream(*GOOD[:2], 'data: {"cho'),
    "a line that is no event": stream(GOOD[0], "<html>\n\n", *GOOD[1:]),
}


@pytest.mark.parametrize("heard", WRONG.values(), ids=WRONG.keys())
def test_what_is_not_right_and_does_not_say_so_is_wrong(heard: Received) -> None:
    assert verdict(heard) is Verdict.WRONG


def test_an_honest_no_is_told_from_a_wrong_answer() -> None:
    assert verdict(Received(429, b'{"error": {"code": "yield"}}', stream=False)) is Verdict.REFUSED
    assert verdict(stream(*GOOD[:3], ERROR)) is Verdict.CUT
    assert verdict(stream(ERROR)) is Verdict.CUT
    assert verdict(stream(*GOOD[:3])) is Verdict.DROPPED
    assert verdict(Received(200, whole(), stream=False, ended=False)) is Verdict.DROPPED


def test_somebody_elses_nonce_is_seen_wherever_it_stands() -> None:
    other = nonce(8)
    assert verdict(Received(200, whole(right(other)), stream=False)) is Verdict.FOREIGN
    assert verdict(stream(*GOOD[:3], f": {other}\n\n")) is Verdict.FOREIGN
    told = json.dumps({"error": {"code": "upstream_failed", "message": other}}).encode()
    assert verdict(Received(502, told, stream=False)) is Verdict.FOREIGN


@given(st.integers(0, len("".join(GOOD)) - 2))
def test_the_right_stream_cut_anywhere_is_not_believed(at: int) -> None:
    cut = "".join(GOOD)[:at]
    assert verdict(Received(200, cut.encode(), stream=True)) in (Verdict.DROPPED, Verdict.WRONG)
