"""The messages between a worker and its engine's process.

    frame    four bytes of length, big-endian, then that many bytes of msgpack, at most MAX_FRAME_BYTES
    request  worker to process: `Start` first
    answer   process to worker, with the request's number; `Forget` and `Stop` have none

Numbers are never reused. The number of the `Prepare` that created a sequence is its handle. Both sides are the same
version of one program, so there are no versions and no optional fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from services.contracts.generate import GenerateRequest
from services.worker.engine import Expected, FinishReason, Memory
from services.worker.engines.torch.spec import TorchSpec

MAX_FRAME_BYTES = 16 * 2**20
_HEAD_BYTES = 4
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M")


class BrokenFrame(Exception):
    """The other side sent bytes that are not a message; the text says what is wrong with them."""


class FrameTooLarge(Exception):
    """A message above MAX_FRAME_BYTES."""


class Simulated(msgspec.Struct, frozen=True, tag=True):
    """A simulated engine in a process, for tests without torch. Its steps are not waited out."""

    model: str = "weir-sim"
    slots: int = 8
    kv_tokens: int = 262_144
    context_tokens: int = 32_768
    prefill_chunk_tokens: int = 0
    seed: int = 0
    step_ms: float = 20.0
    per_sequence_ms: float = 0.5
    prefill_ms_per_token: float = 0.2
    jitter: float = 0.0


class Torch(msgspec.Struct, frozen=True, tag=True):
    """A torch engine. Describing it does not import torch."""

    spec: TorchSpec

    @property
    def model(self) -> str:
        return self.spec.model_id

    @property
    def slots(self) -> int:
        return self.spec.slots

    @property
    def kv_tokens(self) -> int:
        return self.spec.kv_tokens

    @property
    def context_tokens(self) -> int:
        return self.spec.context_tokens


EngineSpec = Simulated | Torch


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Create this engine. Answered by `Ready` or `Unusable`."""

    number: int
    spec: EngineSpec


class Prepare(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answered by `Prepared`, `Rejected` or `StepFailed`. The request is encoded separately: a bad one fails alone."""

    number: int
    request: bytes


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """This prepared sequence will never be admitted. Not answered."""

    handle: int


class StepRequest(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Drop, then admit with deadlines, then compute one step. Answered by `StepResult` or `StepFailed`."""

    number: int
    drops: list[int]
    admits: list[tuple[int, float]]


class Free(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Drop these sequences without a step. Answered by `Freed` or `StepFailed`."""

    number: int
    drops: list[int]


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Close the engine and exit. Not answered."""


class EngineState(msgspec.Struct, frozen=True, array_like=True):
    """The properties of an engine that change."""

    running: int
    kv_usage: float
    slots: int
    kv_tokens: int
    memory: Memory = Memory()


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is ready. `description` is a line for the log."""

    number: int
    name: str
    model: str
    context_tokens: int
    expected: Expected
    state: EngineState
    description: str = ""


class Unusable(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot be created; the process exits."""

    number: int
    message: str


class Prepared(msgspec.Struct, frozen=True, tag=True, array_like=True):
    number: int
    prompt_tokens: int
    unread_tokens: int
    max_tokens: int
    """The longest answer."""


class Rejected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fields of a `BadInput`."""

    number: int
    message: str
    param: str | None
    status: int
    code: str


class StepFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine raised another exception, which its process also logs. The engine still runs."""

    number: int
    error: str


class StepResult(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step's results. Counts are the engine's own, as of now."""

    number: int
    duration_s: float
    batch_size: int
    prefill_tokens: int
    tokens: list[tuple[int, str, int]]
    """Handle, text, completion tokens so far."""
    reading: list[tuple[int, int]]
    """Handle and unread tokens, for sequences whose prompt was unread before this step."""
    finished: list[tuple[int, FinishReason, int]]
    """Handle, reason, completion tokens."""
    lost: list[tuple[int, str]]
    state: EngineState


class Freed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    number: int
    state: EngineState


Question = Start | Prepare | Forget | StepRequest | Free | Stop
Answer = Ready | Unusable | Prepared | Rejected | StepFailed | StepResult | Freed


def frame(message: Question | Answer) -> bytes:
    """The message as bytes on the wire. Raises FrameTooLarge."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"{type(message).__name__} of {len(body)} bytes; at most {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


def pack_request(request: GenerateRequest) -> bytes:
    """Without its ask for slots: engines know no routers."""
    return _encoder.encode(request if request.lease is None else msgspec.structs.replace(request, lease=None))


class Frames:
    """Splits received bytes into frames. One for each connection."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the frames that are complete. Raises BrokenFrame for a frame above the limit."""
        self._buffer += data
        while len(self._buffer) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._buffer[:_HEAD_BYTES], "big")
            if end - _HEAD_BYTES > MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {end - _HEAD_BYTES} bytes; at most {MAX_FRAME_BYTES}")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD_BYTES:end])
            del self._buffer[:end]
            yield body

    def __repr__(self) -> str:
        return f"<Frames, {len(self._buffer)} bytes of the next>"


def unpack(decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    """Decode a frame's body. Raises BrokenFrame, whose text does not quote the body."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BrokenFrame(f"{len(body)} bytes that are no message: {type(error).__name__}") from None
