"""What the load client makes of the bytes of one answer."""

from __future__ import annotations

import json

import pytest

from loadtests.load.answer import MAX_BODY_BYTES, Answer
from loadtests.load.ledger import CODES


def whole(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    answer = Answer()
    answer.status = status
    for name, value in headers:
        answer.header(name, value)
    answer.body(body)
    return answer


def error(code: str | None) -> bytes:
    return json.dumps({"error": {"message": "no", "type": "rate_limit_error", "code": code}}).encode()


def stream(*pieces: bytes) -> tuple[Answer, list[bool]]:
    answer = Answer()
    answer.header(b"content-type", b"text/event-stream; charset=utf-8")
    answer.status = 200
    return answer, [answer.body(piece) for piece in pieces]


def chat(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":%s}}]}\n\n' % json.dumps(text).encode()


USAGE = b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"index": 0, "text": "So"}], "usage": {"completion_tokens": 4}},
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "So"}}],
            "usage": {"completion_tokens": 4},
        },
        {"text": "So", "source": "tier1", "usage": {"completion_tokens": 4}},
        {"event": "done", "finish_reason": "length", "text": "So", "usage": {"completion_tokens": 4}},
    ],
    ids=["completions", "chat", "ask", "generate"],
)
def test_a_whole_answer_of_each_route_is_served_with_its_tokens(body: dict[str, object]) -> None:
    answer = whole(200, json.dumps(body).encode() + b"\n")
    assert (answer.outcome(), answer.tokens) == (("served", ""), 4)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"text":""}]}', b"\xff\xfe"]
)
def test_a_200_that_says_nothing_is_malformed(body: bytes) -> None:
    assert whole(200, body).outcome() == ("failed:malformed", "")


@pytest.mark.parametrize("code", sorted(CODES - {"bare_429", "bare_503"}))
def test_every_code_of_the_table_is_a_refusal(code: str) -> None:
    assert whole(429, error(code)).outcome() == (f"refused:{code}", code)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (503, b"<html><body>No server is available</body></html>", "refused:bare_503"),
        (429, b"", "refused:bare_429"),
        (429, error(None), "refused:bare_429"),
        (500, b"Internal Server Error", "failed:bad_status"),
        (502, b"<html>", "failed:bad_status"),
        (429, error("something_new"), "failed:bad_status"),
    ],
)
def test_an_error_without_a_known_code_is_told_apart(status: int, body: bytes, outcome: str) -> None:
    assert whole(status, body).outcome()[0] == outcome


def test_a_refusals_headers_are_read_and_milliseconds_win() -> None:
    headers = [(b"retry-after-ms", b"120"), (b"retry-after", b"1"), (b"x-should-retry", b"true")]
    for order in (headers, headers[::-1]):
        answer = whole(429, error("yield"), *order, (b"x-weir-level", b"3"), (b"x-weir-degraded", b"max_tokens"))
        assert (answer.hint_ms, answer.should_retry, answer.level, answer.degraded) == (120, True, 3, "max_tokens")


def test_a_retry_after_in_seconds_alone_is_a_hint() -> None:
    assert whole(429, error("yield"), (b"retry-after", b"2")).hint_ms == 2000


def test_a_hint_that_is_no_number_is_malformed() -> None:
    assert whole(429, error("yield"), (b"retry-after-ms", b"soon")).outcome()[0] == "failed:malformed"


def test_a_stream_is_spoken_at_its_first_words_and_served_at_its_end() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    answer, spoke = stream(b": keep-alive\n\n", role, chat("A"), chat(" weir"), USAGE, DONE)
    assert spoke == [False, False, True, False, False, False]
    assert (answer.outcome(), answer.tokens) == (("served", ""), 7)


def test_a_stream_without_usage_counts_its_events() -> None:
    answer, _ = stream(chat("A"), chat(" weir"), DONE)
    assert answer.tokens == 2


def test_events_may_be_cut_anywhere_by_the_network() -> None:
    text = chat("A") + chat(" weir") + USAGE + DONE
    for at in range(1, len(text)):
        answer, spoke = stream(text[:at], text[at:])
        assert sum(spoke) == 1
        assert (answer.outcome(), answer.tokens) == (("served", ""), 7)


def test_asks_own_events_are_read() -> None:
    answer, spoke = stream(
        b'event: token\ndata: {"text":"So"}\n\n',
        b'event: answer\ndata: {"text":"So","source":"tier1","usage":{"completion_tokens":1}}\n\n' + DONE,
    )
    assert spoke == [True, False]
    assert (answer.outcome(), answer.tokens) == (("served", ""), 1)


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ((chat("A"),), "failed:cut"),
        ((chat("A"), b"event: error\ndata: " + error("upstream_failed") + b"\n\n"), "failed:stream_error"),
        ((chat("A"), b"data: {]\n\n", DONE), "failed:malformed"),
        ((DONE,), "failed:malformed"),
    ],
    ids=["no [DONE]", "an error event", "no JSON", "nothing said"],
)
def test_a_stream_that_breaks_is_never_served(pieces: tuple[bytes, ...], outcome: str) -> None:
    assert stream(*pieces)[0].outcome()[0] == outcome


def test_an_endless_body_is_bounded() -> None:
    answer = Answer()
    answer.status = 200
    for _ in range(MAX_BODY_BYTES // 65_536 + 2):
        answer.body(b"x" * 65_536)
    assert answer.outcome()[0] == "failed:malformed"
    assert sum(map(len, answer._buffer)) <= MAX_BODY_BYTES
