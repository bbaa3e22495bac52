"""What goes over the wire comes out as it went in, however it is cut; what cannot be a message is refused at once."""

from __future__ import annotations

import contextlib
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.generate import GenerateRequest, Message
from services.worker.engine import Expected, Memory
from services.worker.engine_wire import (
    MAX_FRAME_BYTES,
    Answer,
    BrokenFrame,
    EngineState,
    Forget,
    Frames,
    FrameTooLarge,
    Free,
    Freed,
    Prepare,
    Prepared,
    Question,
    Ready,
    Rejected,
    Simulated,
    Start,
    StepFailed,
    StepRequest,
    StepResult,
    Stop,
    Torch,
    Unusable,
    frame,
    pack_request,
    unpack,
)  # fmt: skip
from services.worker.engines.torch.spec import TorchSpec

STATE = EngineState(1, 0.25, 8, 1000, Memory(4096, 2**33))
QUESTIONS = [
    Start(1, Simulated(slots=3)), Start(1, Torch(TorchSpec(model_id="tiny", slots=4))), Prepare(2, b"\x80"), Forget(2),
    StepRequest(3, [1, 2], [(4, math.inf), (5, 12.5)]), Free(4, [7]), Stop(),
]  # fmt: skip
ANSWERS = [
    Ready(1, "simulated", "m", 100, Expected(20.0, 0.1), STATE, "a line"), Unusable(1, "why"), Prepared(2, 3, 3, 4),
    Rejected(2, "no", None, 413, "code"), StepFailed(2, "ValueError: x"), Freed(4, STATE),
    StepResult(3, math.inf, 2, 5, [(4, " é\x00🦫", 1)], [(5, 7)], [(4, "stop", 1)], [(5, "out of memory")], STATE),
]  # fmt: skip


@given(st.lists(st.sampled_from(QUESTIONS), max_size=8), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_arrive_whole_and_in_order_however_they_are_cut(messages, cuts):
    data, frames, arrived = b"".join(map(frame, messages)), Frames(), []
    while data:
        cut = cuts[len(data) % len(cuts)]
        arrived += [unpack(msgspec.msgpack.Decoder(Question), body) for body in frames.feed(data[:cut])]
        data = data[cut:]
    assert arrived == messages


@pytest.mark.parametrize("message", ANSWERS, ids=lambda each: type(each).__name__)
def test_an_answer_is_itself_again(message):
    (body,) = Frames().feed(frame(message))
    assert unpack(msgspec.msgpack.Decoder(Answer), body) == message


def test_a_request_is_itself_again():
    request = GenerateRequest(
        "id", "t", 1000.0, 5, messages=[Message("user", "hällo 🦫")], stop=["\n"], seed=2**40, temperature=0.0
    )
    assert msgspec.msgpack.decode(pack_request(request), type=GenerateRequest) == request


def test_a_giant_is_refused_by_its_first_four_bytes():
    with pytest.raises(BrokenFrame, match="at most"):
        list(Frames().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))


def prepare_of(size: int) -> Prepare:
    """A message whose body has this many bytes; a long byte string has a head of five."""
    around = len(frame(Prepare(1, b""))) - 4 - 2
    return Prepare(1, b"x" * (size - around - 5))


def test_a_giant_is_not_sent_either():
    with pytest.raises(FrameTooLarge, match=f"Prepare of {MAX_FRAME_BYTES + 1} bytes"):
        frame(prepare_of(MAX_FRAME_BYTES + 1))


def test_the_largest_frame_is_read():
    largest = frame(prepare_of(MAX_FRAME_BYTES))
    assert len(largest) == MAX_FRAME_BYTES + 4
    frames = Frames()
    assert list(frames.feed(largest[:-1])) == []
    assert [len(body) for body in frames.feed(largest[-1:])] == [MAX_FRAME_BYTES]


@given(st.binary(max_size=40))
def test_no_bytes_make_a_reader_raise_anything_else(data):
    with contextlib.suppress(BrokenFrame):
        for body in Frames().feed(data):
            unpack(msgspec.msgpack.Decoder(Answer), body)


def test_what_could_not_be_read_is_not_quoted():
    (body,) = Frames().feed(frame(Rejected(2, "secret", None, 413, "code")))
    with pytest.raises(BrokenFrame) as raised:
        unpack(msgspec.msgpack.Decoder(Question), body)
    assert "secret" not in str(raised.value)
