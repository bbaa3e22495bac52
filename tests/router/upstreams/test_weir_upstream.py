"""A Weir worker's stream of events: told whole or not at all, whatever comes over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.outcome import Outcome
from services.router.upstreams.call import End, WorkerFailed
from services.router.upstreams.weir import MAX_LINE_BYTES, WeirStream, refusal_of
from services.runtime.errors import BadInput, Refused
from services.runtime.upstream import AnswerTooLarge, Truncated, UpstreamError
from tests.router.fleetrig import FakeReply
from tests.virtual import run

DONE = {
    "event": "done",
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 4, "completion_tokens": 2},
    "timings": {"queue_ms": 1.0, "first_token_ms": 2.0, "total_ms": 3.0},
    "batch_size": 1,
}
TOKENS = [{"event": "token", "text": text} for text in ("A ", "wéir.")]


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)


def hear(*pieces: bytes, cut: bool = False) -> tuple[str, End]:
    async def main() -> tuple[str, End]:
        stream = WeirStream(FakeReply(*pieces, cut=cut), 40)  # type: ignore[arg-type]  # a fake
        text = ""
        while (delta := await stream.next()) is not None:
            text += delta.text
        assert stream.end is not None
        return text, stream.end

    return run(main())


@given(st.data())
def test_a_stream_means_the_same_however_it_is_cut_into_pieces(data: st.DataObject) -> None:
    body = lines(*TOKENS, DONE)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert hear(*pieces) == ("A wéir.", End("stop", 4, 2, 1.0, 2.0))


@given(st.integers(0, 200), st.booleans())
def test_a_stream_that_is_cut_anywhere_before_its_end_is_never_taken_for_whole(at: int, cut: bool) -> None:
    body = lines(*TOKENS, DONE)
    with pytest.raises(UpstreamError):
        hear(body[: min(at, len(body) - 2)], cut=cut)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_raises_and_is_never_an_answer(garbage: bytes, cut: bool) -> None:
    with pytest.raises(UpstreamError):
        hear(garbage, cut=cut)


ABSURD: list[dict[str, Any]] = [
    {"usage": {"prompt_tokens": -1, "completion_tokens": 2}},
    {"usage": {"prompt_tokens": 4, "completion_tokens": 10**20}},
    {"usage": {"prompt_tokens": 4, "completion_tokens": 1.5}},
    {"usage": None},
    {"timings": {"queue_ms": -1, "first_token_ms": 2.0, "total_ms": 3.0}},
    {"timings": {"queue_ms": 1e300, "first_token_ms": 2.0, "total_ms": 3.0}},
    {"finish_reason": "tired"},
]


@pytest.mark.parametrize("absurd", ABSURD, ids=str)
def test_an_end_with_absurd_figures_is_no_end(absurd: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError, match="unexpected format"):
        hear(lines(*TOKENS, {**DONE, **absurd}))


def test_nothing_comes_after_the_end() -> None:
    for more in (TOKENS[0], DONE):
        with pytest.raises(UpstreamError, match="after its last one"):
            hear(lines(*TOKENS, DONE, more))


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("internal_error", WorkerFailed),
        ("deadline_exceeded", Refused),
        ("poison_request", Refused),
        ("x", WorkerFailed),
    ],
)
def test_a_failure_is_raised_for_what_it_means(code: str, meaning: type) -> None:
    with pytest.raises(meaning) as raised:
        hear(lines(TOKENS[0], {"event": "failed", "code": code, "message": "broken"}))
    assert not isinstance(raised.value, BadInput)
    if isinstance(raised.value, Refused):
        assert raised.value.outcome is Outcome(code)


def test_a_line_without_end_is_cut_off() -> None:
    with pytest.raises(UpstreamError, match="an event exceeds"):
        hear(*[b"x" * 65_536] * (MAX_LINE_BYTES // 65_536 + 1))
    with pytest.raises(Truncated):
        hear(b"x" * 1000)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xc3", b'"' + b',"x":' + b"[" * 50_000 + b"]" * 50_000 + b',"y":"'])
def test_an_event_that_is_not_text_or_has_no_bottom_is_the_workers_failure_and_not_ours(text: bytes) -> None:
    with pytest.raises(UpstreamError, match="unexpected format"):
        hear(lines(TOKENS[0]) + b'{"event":"token","text":"' + text + b'"}\n')
    assert isinstance(refusal_of(500, b'{"error":{"message":"' + text + b'"}}'), WorkerFailed)


@pytest.mark.parametrize("completion_tokens", [0, 41, 2**31])
def test_a_count_that_cannot_be_is_no_end(completion_tokens: int) -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": completion_tokens}
    with pytest.raises(UpstreamError, match="reports"):
        hear(lines(*TOKENS, {**DONE, "usage": usage}))


def test_an_answer_without_words_may_have_cost_tokens_or_none() -> None:
    for completion_tokens in (0, 2):
        usage = {"prompt_tokens": 4, "completion_tokens": completion_tokens}
        assert hear(lines({**DONE, "usage": usage})) == ("", End("stop", 4, completion_tokens, 1.0, 2.0))


def test_an_answer_in_one_piece_is_not_taken_for_an_empty_stream() -> None:
    with pytest.raises(UpstreamError, match="one response"):
        hear(lines({**DONE, "text": "A whole answer."}))


def test_an_event_without_an_end_is_bounded_however_small_the_pieces_are() -> None:
    assert hear(*[bytes([byte]) for byte in lines(*TOKENS, DONE)]) == ("A wéir.", End("stop", 4, 2, 1.0, 2.0))
    with pytest.raises(Truncated):
        hear(b"x" * (MAX_LINE_BYTES - 1000), *[b"x"] * 1000)
    with pytest.raises(AnswerTooLarge):
        hear(b"x" * (MAX_LINE_BYTES - 1000), *[b"x"] * 1001)
