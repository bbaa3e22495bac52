"""What the router asks of a worker, and what it gets: the same for every kind of worker.

An upstream (weir, openai) turns a `Call` into a `Whole` or a `Stream`; what it calls so is the request itself.
An upstream that speaks the client's own format hands the bytes through in `raw`, unread where that is safe.
They are Structs because one is made at each step of each request, and a frozen dataclass costs ten times more.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.contracts.generate import Message
from services.router.parsing.parsed import ParsedRequest
from services.runtime.upstream import UpstreamError

MAX_MODELS = 256
"""The most models that one worker may have."""


class Call(Protocol):
    """What an upstream reads of a request, which lies above it in the layers."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def parsed(self) -> ParsedRequest: ...

    @property
    def answer_tokens(self) -> int:
        """The longest answer that the worker may give."""

    @property
    def messages(self) -> list[Message] | None:
        """The chat to answer; None where there is a prompt instead."""


class Attempt(msgspec.Struct, frozen=True):
    """One try at one worker. Its id is the router's own: two clients may use the same `x-request-id`."""

    id: str
    remaining_ms: float
    trace: tuple[tuple[bytes, bytes], ...] = ()  # W3C trace context


class End(msgspec.Struct, frozen=True):
    """What the last event of an answer says. Counts are the engine's own."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    queue_ms: float = 0.0
    first_token_ms: float = 0.0  # from the worker's hearing of it; 0 where it does not say


class Whole(msgspec.Struct, frozen=True):
    """An answer in one piece."""

    text: str
    end: End
    raw: bytes | None = None


class Delta(msgspec.Struct, frozen=True):
    """What has newly arrived of a stream: text, or the client's own format in `raw`."""

    text: str = ""
    raw: bytes | None = None


class Stream(Protocol):
    """An answer under way. `next` returns None after the end; `end` and `tail` are set then and not before."""

    end: End | None
    tail: list[bytes]  # the last events in the client's own format, kept back so that timings can be added

    async def next(self) -> Delta | None:
        """The next delta. Raises UpstreamError when the answer is cut, malformed or failed."""

    def close(self) -> None:
        """Let go; an unfinished answer is aborted at the worker."""


class Begun(msgspec.Struct, frozen=True):
    """A stream whose first output is here: from now on there is no retry. `first` is None for an empty answer."""

    stream: Stream
    first: Delta | None


class Busy(Exception):
    """A worker refused: it is at its bound, or draining. `delay_ms` is its own estimate of the wait."""

    def __init__(self, delay_ms: float, *, draining: bool = False) -> None:
        super().__init__(f"busy for {delay_ms:g} ms")
        self.delay_ms = delay_ms
        self.draining = draining


class WorkerFailed(UpstreamError):
    """The worker is there and says that it failed: worth a retry elsewhere, no reason to think it dead."""

    public = "it answered with an error"


class EngineLost(WorkerFailed):
    """The worker is there and its engine died over the request: for the request, as good as a lost worker."""

    public = "its engine died"


class Upstream(Protocol):
    """How one kind of worker is spoken to. Raises Busy, UpstreamError, or BadInput when the request is at fault."""

    async def whole(self, call: Call, attempt: Attempt) -> Whole:
        """The answer in one piece."""

    async def open(self, call: Call, attempt: Attempt) -> Stream:
        """A stream whose head has been accepted."""

    async def cancel(self, attempt_id: str) -> None:
        """Say that nobody waits; beside the closed socket, and allowed to fail."""

    async def probe(self) -> Probe:
        """What the worker announces. Raises UpstreamError when it does not answer."""

    def give_up(self, why: str) -> None:
        """It is taken for dead: fail what it has not begun to answer, so that it can be tried elsewhere."""

    def close(self) -> None:
        """Nothing new comes: close idle connections, and those in use when their replies end."""


class Probe(msgspec.Struct, frozen=True):
    """A worker's own word. Where the worker list has a word on slots or models, that one counts."""

    slots: int
    models: tuple[str, ...]
    draining: bool = False
    kv_tokens: int | None = None
    step_ms: float = 0.0
    prefill_ms_per_token: float = 0.0
    batch: int | None = None  # sequences in its engine; None: it does not say
