"""The refusal table: one for every path."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.outcome import Outcome
from services.runtime.errors import MAX_RETRY_HINT_MS, MIN_RETRY_HINT_MS, REFUSALS, BadInput, Refused, problem


def test_every_outcome_but_served_has_its_row() -> None:
    assert set(REFUSALS) == set(Outcome) - {Outcome.SERVED}


@pytest.mark.parametrize("outcome", sorted(REFUSALS))
def test_every_refusal_that_may_be_retried_carries_a_hint_and_no_other_does(outcome: Outcome) -> None:
    status, headers, body = problem(Refused(outcome, "no"))
    named = dict(headers)
    error = json.loads(body)["error"]
    assert status == REFUSALS[outcome].status
    assert error["code"] == outcome
    assert named[b"x-should-retry"] == (b"true" if REFUSALS[outcome].retry else b"false")
    assert (b"retry-after-ms" in named) == REFUSALS[outcome].retry
    assert (b"retry-after" in named) == REFUSALS[outcome].retry
    assert ("retry_hint_ms" in error["details"]) == REFUSALS[outcome].retry
    assert (error["details"].get("status") == "yield") == (status == 429)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_hint_is_always_a_whole_number_within_its_bounds(hint_ms: float) -> None:
    _, headers, body = problem(Refused(Outcome.YIELD, "full", retry_hint_ms=hint_ms, predicted_wait_ms=hint_ms))
    told = int(dict(headers)[b"retry-after-ms"])
    assert MIN_RETRY_HINT_MS <= told <= MAX_RETRY_HINT_MS
    assert int(dict(headers)[b"retry-after"]) * 1000 >= told
    assert json.loads(body)["error"]["details"]["retry_hint_ms"] == told


def test_the_envelope_is_openais() -> None:
    _, _, body = problem(BadInput("top_k: too many", "top_k"))
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "code", "param", "details"}
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_request", "top_k")


def test_the_reason_stands_in_a_header_too() -> None:
    _, headers, _ = problem(Refused(Outcome.YIELD, "full", reason="max_inflight"))
    assert dict(headers)[b"x-weir-reason"] == b"max_inflight"
