"""Requests as bytes."""

from __future__ import annotations

import json

import pytest

from loadtests.load import asking
from loadtests.load.arrivals import Ask
from loadtests.load.asking import Asking, Questions
from loadtests.load.plan import Step, Tenant

TENANT = Tenant("a", (Step(0, 1),), deadline_ms=1000, deadline_per_token_ms=0.5)


def test_a_request_has_the_lengths_and_the_deadline_of_its_ask() -> None:
    head, body = Asking("http://127.0.0.1:1", "chat").bytes_of(Ask(0, TENANT, 50, 7, False), 3).split(b"\r\n\r\n")
    assert b"x-weir-deadline-ms: 1003.5\r\n" in head + b"\r\n"
    said = json.loads(body)
    assert len(said["messages"][0]["content"].split()) == 50
    assert said["max_tokens"] == 7


@pytest.mark.parametrize("route", ["completions", "chat", "ask", "generate"])
@pytest.mark.parametrize("prompt_tokens", [1, 2, 32_768])
def test_a_request_is_as_long_as_it_says_and_bears_its_number(route: str, prompt_tokens: int) -> None:
    ask = Ask(0, TENANT, prompt_tokens, 7, False)
    head, body = Asking("http://127.0.0.1:1", route).bytes_of(ask, 0xABC123).split(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head.split(b"\r\n")
    said = json.loads(body)
    assert ("abc123" + " water" * (prompt_tokens - 1)) in (*said.values(), said.get("messages", [{}])[0].get("content"))
    assert said.get("id", "load-abc123") == "load-abc123"


def test_a_question_in_words_of_its_own_is_asked_for_so_many_passages() -> None:
    made = Questions("http://127.0.0.1:1", "question {}".format, 2)
    head, body = made.bytes_of(Ask(0, TENANT, 50, 7, False), 12).split(b"\r\n\r\n")
    assert head.startswith(b"POST /ask HTTP/1.1\r\nhost: 127.0.0.1:1\r\n")
    assert b"content-length: %d" % len(body) in head.split(b"\r\n")
    assert json.loads(body) == {"query": "question 12", "top_k": 2, "max_tokens": 7}


def test_what_is_kept_of_long_prompts_is_bounded() -> None:
    made = Asking("http://127.0.0.1:1", "completions")
    for tokens in range(1, 3 * asking.CACHED_SHAPES):
        made.bytes_of(Ask(0, TENANT, 32_768, tokens, False), 1)
        assert len(made._shapes) <= asking.CACHED_SHAPES
    assert max(len(b"".join((each.head, *each.until_the_rest, each.end))) for each in made._shapes.values()) < 1000
