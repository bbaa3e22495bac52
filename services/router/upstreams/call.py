"""The interface to workers, the same for every kind.

An upstream (weir, openai) turns a `Call` into a `Whole` or a `Stream`; the call is the request itself. An upstream that
speaks the client's format passes the bytes through in `raw`. The types are Structs, since one is made at each step of
each request, and a frozen dataclass costs ten times more.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.contracts.generate import Message
from services.contracts.lease import LeaseAsk, LeaseGrant
from services.router.parsing.parsed import ParsedRequest
from services.router.upstreams.enginepage import EngineReport
from services.runtime.upstream import UpstreamError

MAX_MODELS = 256
"""The maximum number of models of one worker."""


class Call(Protocol):
    """The attributes of a request that upstreams read; the request's own class is in a higher layer."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def parsed(self) -> ParsedRequest: ...

    @property
    def limit_tokens(self) -> int | None:
        """The length limit of the answer, in tokens; None: no limit."""

    @property
    def messages(self) -> list[Message] | None:
        """The chat to answer; None if there is a prompt instead."""


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at one worker. Its id is the router's own, since two clients may use the same `x-request-id`."""

    id: str
    remaining_ms: float
    trace: tuple[tuple[bytes, bytes], ...] = ()  # W3C trace context
    lease: LeaseAsk | None = None  # for a worker that lends its slots to several routers


class End(msgspec.Struct, frozen=True):
    """The end of an answer. Counts are the engine's own."""

    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    queue_ms: float = 0.0
    first_token_ms: float = 0.0  # from the worker's receipt of the request; 0: not reported
    lease: LeaseGrant | None = None  # what the worker lends to this router from now on


class Whole(msgspec.Struct, frozen=True):
    text: str
    end: End
    raw: bytes | None = None


class Delta(msgspec.Struct, frozen=True):
    """New output of a stream: text, or bytes of the client's format in `raw`."""

    text: str = ""
    raw: bytes | None = None


class Stream(Protocol):
    """A stream in progress. `next` returns None after the end; `end` and `tail` are set only then."""

    end: End | None
    tail: list[bytes]  # the last events in the client's format, held back to add timings

    async def next(self) -> Delta | None:
        """The next delta. Raises UpstreamError if the answer is cut, malformed or failed."""

    def close(self) -> None:
        """Release the connection; an unfinished answer is aborted at the worker."""


class StartedStream(msgspec.Struct, frozen=True):
    """A stream with its first output, after which there is no retry. `first` is None for an empty answer."""

    stream: Stream
    first: Delta | None


class Busy(Exception):
    """A worker refused: it is at its limit, or draining. `delay_ms` is its own estimate of the wait."""

    def __init__(self, delay_ms: float, *, draining: bool = False) -> None:
        super().__init__(f"busy for {delay_ms:g} ms")
        self.delay_ms = delay_ms
        self.draining = draining


class WorkerFailed(UpstreamError):
    """A worker reported an error: worth a retry elsewhere, and no sign that the worker is down."""

    public = "it returned an error"


class EngineLost(WorkerFailed):
    """The worker's engine died over the request: for the request the same as a lost worker."""

    public = "its engine failed"


class Upstream(Protocol):
    """Client of one kind of worker. Raises Busy, UpstreamError, or BadInput if the request is at fault."""

    async def whole(self, call: Call, attempt: Attempt) -> Whole:
        """The answer in one piece."""

    async def open(self, call: Call, attempt: Attempt) -> Stream:
        """A stream, after the worker has accepted the request."""

    async def cancel(self, attempt_id: str) -> None:
        """Cancel an attempt, in addition to closing its connection; may fail."""

    async def probe(self) -> Probe:
        """The worker's reported state. Raises UpstreamError if it does not answer."""

    def give_up(self, why: str) -> None:
        """The worker is taken for dead: fail the requests that it has not begun to answer, for a retry."""

    def close(self) -> None:
        """Close idle connections now, and those in use when their replies end."""


class GrantStream(Protocol):
    """What a worker grants, as it happens."""

    async def next(self) -> LeaseGrant | None:
        """The last of the grants that arrived; None at the end. Raises UpstreamError if it is cut or malformed."""

    def close(self) -> None:
        """End it, and so the lease."""


class Lender(Protocol):
    """What lends slots: the worker itself, or the desk of a server that cannot."""

    async def lease(self, ask: LeaseAsk) -> LeaseGrant:
        """Ask for slots, or give some back. Raises UpstreamError."""

    async def grants(self, router: str, epoch: int) -> GrantStream:
        """Open the stream of grants to this router. Raises UpstreamError."""

    async def lease_status(self) -> int:
        """The status of `GET /lease`, which asks for nothing: 405 of what lends, 404 of what does not."""

    def close(self) -> None:
        """Close idle connections now, and those in use when their replies end."""


class Probe(msgspec.Struct, frozen=True):
    """A worker's reported state. Slots and models in the worker list take precedence."""

    slots: int
    models: tuple[str, ...]
    draining: bool = False
    kv_tokens: int | None = None
    step_ms: float = 0.0
    prefill_ms_per_token: float = 0.0
    batch: int | None = None  # sequences in its engine; None: not reported
    report: EngineReport | None = None  # of another server's engine, from its metrics page
