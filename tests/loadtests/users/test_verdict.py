"""The load test's own judgement: what counts as served, refused or failed."""

from __future__ import annotations

import json

import pytest

from loadtests.users.verdict import (
    Kind,
    StreamVerdict,
    Verdict,
    excused,
    failed,
    in_time,
    judge_ask,
    judge_chat,
    judge_refusal,
    no_answer,
)

ANSWER = {"text": "It refuses.", "source": "tier1"}
CHAT = {"choices": [{"message": {"content": "It refuses."}}], "usage": {"completion_tokens": 3}}
HINTED = {"x-should-retry": "true", "retry-after-ms": "120", "retry-after": "1"}


def envelope(code: str) -> bytes:
    return json.dumps({"error": {"message": "no", "type": "rate_limit_error", "code": code}}).encode()


def chunk(text: str | None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


def heard(*lines: bytes) -> StreamVerdict:
    stream = StreamVerdict({})
    for line in lines:
        stream.feed(line + b"\r\n")
    return stream


def test_a_whole_answer_is_served():
    assert judge_ask(200, {}, json.dumps(ANSWER).encode()) == Verdict(Kind.SERVED)
    assert judge_chat(200, {}, json.dumps(CHAT).encode()) == Verdict(Kind.SERVED)


def test_a_cut_answer_is_served_and_says_so():
    assert str(judge_ask(200, {}, json.dumps({**ANSWER, "source": "degraded"}).encode())) == "served: degraded"
    assert str(judge_chat(200, {"x-weir-degraded": "max_tokens"}, json.dumps(CHAT).encode())) == "served: degraded"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", json.dumps({**ANSWER, "text": ""}).encode()])
def test_status_200_without_an_answer_is_a_failure(body):
    assert judge_ask(200, {}, body).kind is Kind.FAILED
    assert judge_chat(200, {}, body).kind is Kind.FAILED


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_with_envelope_and_hint_is_no_failure(status):
    verdict = judge_refusal(status, HINTED, envelope("yield"))
    assert (verdict.kind, verdict.retry, verdict.hint_s) == (Kind.REFUSED, True, 0.12)


def test_a_refusal_that_invites_no_retry_needs_no_hint():
    verdict = judge_refusal(429, {"x-should-retry": "false"}, envelope("deadline_expired"))
    assert (verdict.kind, verdict.retry) == (Kind.REFUSED, False)


@pytest.mark.parametrize("hint", [{}, {"retry-after": "soon"}, {"retry-after-ms": "-5"}])
def test_a_refusal_that_invites_a_retry_without_a_hint_is_a_failure(hint):
    assert judge_refusal(429, {"x-should-retry": "true", **hint}, envelope("yield")).kind is Kind.FAILED


@pytest.mark.parametrize("body", [b"", b"busy", b'{"error": "busy"}', b'{"error": {}}'])
def test_a_refusal_without_the_envelope_is_a_failure(body):
    assert judge_refusal(503, HINTED, body).kind is Kind.FAILED


@pytest.mark.parametrize("status", [400, 404, 500, 502, 504])
def test_any_other_status_is_a_failure_even_with_the_envelope(status):
    assert str(judge_refusal(status, HINTED, envelope("upstream_failed"))) == f"failed: {status} upstream_failed"


def test_an_answer_after_its_deadline_is_a_failure_and_a_late_refusal_is_not():
    served, refused = Verdict(Kind.SERVED), Verdict(Kind.REFUSED, "yield")
    assert in_time(served, 1_200, 1_000) == served
    assert str(in_time(served, 1_300, 1_000)) == "failed: late"
    assert in_time(refused, 1_300, 1_000) == refused


def test_the_first_words_of_a_stream_are_noticed_once():
    stream = StreamVerdict({})
    lines = [chunk(""), b"", chunk("It"), b"", chunk(" refuses."), b"", b"data: [DONE]", b""]
    assert [stream.feed(line + b"\n") for line in lines].index(True) == 2
    assert stream.verdict() == Verdict(Kind.SERVED)


def test_a_stream_without_its_end_is_cut_short():
    assert str(heard(chunk("It")).verdict()) == "failed: stream cut short"


def test_a_stream_that_breaks_says_why():
    broken = heard(chunk("It"), b"", b"event: error", b"data: " + envelope("upstream_failed"), b"")
    assert str(broken.verdict()) == "failed: stream broken: upstream_failed"


def test_a_stream_that_ends_without_a_word_is_a_failure():
    assert heard(b": keep-alive", b"", b"data: [DONE]").verdict().kind is Kind.FAILED


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
    for verdict in (Verdict(Kind.SERVED), Verdict(Kind.REFUSED, "yield", True, 0.1)):
        assert excused(verdict) == verdict


def test_a_user_who_waits_for_ever_has_found_a_hang_and_an_impatient_one_has_left():
    assert str(no_answer(timed_out=True, patient=True)) == "failed: hung past its deadline"
    assert str(no_answer(timed_out=True, patient=False)) == "left: out of patience"
    assert str(no_answer(timed_out=False, patient=False)) == "failed: connection lost"
