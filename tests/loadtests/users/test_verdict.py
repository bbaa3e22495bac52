"""The load test's own judgement: what counts as served, refused or failed."""

from __future__ import annotations

import json

import pytest

from loadtests.load.answer import Answer
from loadtests.users.verdict import Kind, Verdict, excused, failed, in_time, judge, no_answer

ANSWER = {"text": "It refuses.", "source": "tier1"}
CHAT = {"choices": [{"message": {"content": "It refuses."}}], "usage": {"completion_tokens": 3}}
HINTED = {"x-should-retry": "true", "retry-after-ms": "120", "retry-after": "1"}
WORD = b'data: {"choices": [{"delta": {"content": "It"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def envelope(code: str) -> bytes:
    return json.dumps({"error": {"message": "no", "type": "rate_limit_error", "code": code}}).encode()


def judged(surface: str, body: object, status: int = 200, headers: dict[str, str] | None = None) -> Verdict:
    answer = Answer()
    answer.status, answer.streamed = status, surface == "stream"
    for name, value in (headers or {}).items():
        answer.header(name.encode(), value.encode())
    answer.body(body if isinstance(body, bytes) else json.dumps(body).encode())
    return judge(answer, surface)


def refused(status: int, headers: dict[str, str], body: bytes) -> Verdict:
    return judged("chat", body, status, headers)


def test_a_whole_answer_is_served():
    for surface, body in (("ask", ANSWER), ("chat", CHAT), ("stream", WORD + DONE)):
        assert judged(surface, body) == Verdict(Kind.SERVED), surface


def test_a_cut_answer_is_served_and_says_so():
    cut = {"x-weir-degraded": "max_tokens"}
    assert str(judged("ask", {**ANSWER, "source": "degraded"})) == "served: degraded"
    assert (
        str(judged("chat", CHAT, headers=cut)) == str(judged("stream", WORD + DONE, headers=cut)) == "served: degraded"
    )


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", {**ANSWER, "text": ""}, {**ANSWER, "source": "nowhere"}])
def test_status_200_without_an_answer_is_a_failure(body):
    assert judged("ask", body).kind is Kind.FAILED
    assert judged("chat", body).kind is Kind.FAILED


def test_a_chat_that_counts_no_token_is_no_answer():
    assert judged("chat", {**CHAT, "usage": {"completion_tokens": 0}}).kind is Kind.FAILED


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("code", ["yield", "a_new_reason"])
def test_a_refusal_with_envelope_and_hint_is_no_failure(status, code):
    assert refused(status, HINTED, envelope(code)) == Verdict(Kind.REFUSED, code)


def test_a_refusal_that_invites_no_retry_needs_no_hint():
    assert refused(429, {"x-should-retry": "false"}, envelope("deadline_expired")).kind is Kind.REFUSED


@pytest.mark.parametrize("hint", [{}, {"retry-after": "soon"}, {"retry-after-ms": "-5"}])
def test_a_refusal_that_invites_a_retry_without_a_hint_is_a_failure(hint):
    assert refused(429, {"x-should-retry": "true", **hint}, envelope("yield")).kind is Kind.FAILED


@pytest.mark.parametrize("body", [b"", b"busy", b'{"error": "busy"}', b'{"error": {}}'])
@pytest.mark.parametrize("status", [503, 500])
def test_a_refusal_without_the_envelope_is_a_failure(body, status):
    assert str(refused(status, HINTED, body)) == f"failed: {status} without the error envelope"


@pytest.mark.parametrize("status", [400, 404, 500, 502, 504])
def test_any_other_status_is_a_failure_even_with_the_envelope(status):
    assert str(refused(status, HINTED, envelope("upstream_failed"))) == f"failed: {status} upstream_failed"


def test_a_stream_without_its_end_is_cut_short_and_one_that_breaks_says_why():
    assert str(judged("stream", WORD)) == "failed: stream cut short"
    broken = WORD + b"event: error\ndata: " + envelope("upstream_failed") + b"\n\n"
    assert str(judged("stream", broken)) == "failed: stream broken: upstream_failed"
    assert judged("stream", b": keep-alive\n\n" + DONE).kind is Kind.FAILED


def test_an_answer_after_its_deadline_is_a_failure_and_a_late_refusal_is_not():
    served, refusal = Verdict(Kind.SERVED), Verdict(Kind.REFUSED, "yield")
    assert in_time(served, 1_200, 1_000) == served
    assert str(in_time(served, 1_300, 1_000)) == "failed: late"
    assert in_time(refusal, 1_300, 1_000) == refusal


@pytest.mark.parametrize("said", ["504 deadline_exceeded", "502 upstream_failed", "stream broken: deadline_exceeded"])
def test_what_a_broken_worker_could_not_finish_is_lost_if_that_is_said_in_plain_sight(said):
    assert str(excused(failed(said))) == f"lost: {said}"


@pytest.mark.parametrize(
    "said",
    ["late", "stream cut short", "200 without an answer", "connection lost", "hung past its deadline", "500 internal"],
)
def test_nothing_else_is_excused_by_a_broken_worker(said):
    assert excused(failed(said)).kind is Kind.FAILED


def test_an_answer_and_a_refusal_stay_what_they_are_beside_a_broken_worker():
    for verdict in (Verdict(Kind.SERVED), Verdict(Kind.REFUSED, "yield")):
        assert excused(verdict) == verdict


def test_a_user_who_waits_for_ever_has_found_a_hang_and_an_impatient_one_has_left():
    assert str(no_answer(timed_out=True, patient=True)) == "failed: hung past its deadline"
    assert str(no_answer(timed_out=True, patient=False)) == "left: out of patience"
    assert str(no_answer(timed_out=False, patient=False)) == "failed: connection lost"
