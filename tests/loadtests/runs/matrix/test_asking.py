"""What every gateway is asked, and how its answers are read."""

from __future__ import annotations

import json

import pytest

from loadtests.cluster.stand import key_of
from loadtests.load.arrivals import Ask
from loadtests.load.plan import Step, Tenant
from loadtests.runs.matrix.asking import KNOWN, KNOWN_EVERY, Chats, Reply, question

LIGHT = Tenant("light", (Step(0, 1),), deadline_ms=250)
ASK = Ask(0.0, LIGHT, 3, 8, False)


def parts(request: bytes) -> tuple[dict[str, str], dict[str, object]]:
    head, body = request.decode("ascii").split("\r\n\r\n")
    first, *lines = head.split("\r\n")
    assert first == "POST /v1/chat/completions HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return headers, json.loads(body)


def test_a_request_carries_its_deadline_for_whoever_reads_it_and_its_tenants_key() -> None:
    headers, body = parts(Chats("http://127.0.0.1:80").bytes_of(ASK, 255))
    assert headers["x-weir-deadline-ms"] == "250"
    assert headers["x-litellm-timeout"] == "0.25"
    assert headers["authorization"] == f"Bearer {key_of('light')}"
    assert body["messages"] == [{"role": "user", "content": "0000ff water water"}]
    assert (body["max_tokens"], body["ignore_eos"], body["model"]) == (8, True, "weir-sim")


def test_a_gateway_that_knows_one_key_gets_that_one() -> None:
    headers, _ = parts(Chats("http://127.0.0.1:80", "sk-1").bytes_of(ASK, 1))
    assert headers["authorization"] == "Bearer sk-1"
    assert headers["x-tenant"] == "light"


def reply(status: int, body: bytes) -> str:
    answer = Reply()
    answer.status = status
    answer.body(body)
    return answer.outcome()[0]


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (429, b'{"error": {"code": "429"}}', "refused:bare_429"),  # LiteLLM
        (503, b'{"error": {"code": 503}}', "refused:bare_503"),
        (503, b"<html>", "refused:bare_503"),  # HAProxy
        (408, b"", "refused:bare_503"),  # the routers: it has waited long enough
        (429, b'{"error": {"code": "yield"}}', "refused:yield"),  # a worker's own, passed on
        (500, b'{"error": {"code": "500"}}', "failed:bad_status"),
        (401, b'{"error": {"code": "401"}}', "failed:bad_status"),
        (200, b'{"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 1}}', "served"),
    ],
)
def test_a_no_is_a_refusal_in_whatever_words_and_an_error_is_none(status: int, body: bytes, outcome: str) -> None:
    assert reply(status, body) == outcome


def test_all_questions_about_documents_but_every_fifth_are_asked_once() -> None:
    asked = [question(number) for number in range(1_000, 2_000)]
    again = [question(number) for number in range(10_000, 11_000)]
    assert len(set(asked) & set(again)) == len(set(asked[::KNOWN_EVERY])) == KNOWN
    assert len(set(asked)) == 1000 - 1000 // KNOWN_EVERY + KNOWN
