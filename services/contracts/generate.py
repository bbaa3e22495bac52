"""Router -> worker: `POST /generate`, `POST /infer`, `POST /cancel/{id}`, `GET /status`.

`/generate` answers 200 with newline-delimited JSON events (`application/x-ndjson`): any number of `token`, then exactly
one `done` or `failed`. With `stream: false` the only line is `done` with the whole `text`. A stream without `done` or
`failed` is truncated and never reported as complete. An answer carries the `x-request-id` of its request: an answer
with another id was left over on the connection. A worker at its limit answers 429 with a `Problem` whose
`details.predicted_wait_ms` is its queue delay.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.contracts.lease import LeaseAsk, LeaseGrant

LONGEST_TOKENS = 131_072
"""The longest answer that can be asked for."""

Id = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+\Z")]

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Tokens = Annotated[int, Meta(ge=0, le=2**31)]
Milliseconds = Annotated[float, Meta(ge=0, le=3_600_000)]


class Message(msgspec.Struct, frozen=True):
    """One message of a chat. The worker applies its model's own template."""

    role: str
    content: str


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one of `prompt` and `messages` is set. `deadline_ms` is the time that remains, never a time of day.

    Without `max_tokens` the answer ends where the model ends it, at the end of its context or at the deadline.
    """

    id: Id
    tenant: str
    deadline_ms: Annotated[float, Meta(gt=0, le=600_000)]
    max_tokens: Annotated[int, Meta(ge=1, le=LONGEST_TOKENS)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=8192)] | None = None
    model: str | None = None
    stream: bool = True
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    stop: Annotated[list[str], Meta(max_length=4)] = []
    seed: int | None = None
    ignore_eos: bool = False  # generate up to the limit; load generators use it
    lease: LeaseAsk | None = None  # of one of several routers


class Usage(msgspec.Struct, frozen=True):
    """Counted by the engine's tokenizer, never estimated."""

    prompt_tokens: Tokens
    completion_tokens: Tokens


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds: the wait for a slot, the time to the first token, and the total."""

    queue_ms: Milliseconds
    first_token_ms: Milliseconds
    total_ms: Milliseconds


class Token(msgspec.Struct, frozen=True, tag_field="event", tag="token"):
    """The text of one token. The concatenation of all is the answer, byte for byte."""

    text: str


class Done(msgspec.Struct, frozen=True, tag_field="event", tag="done", omit_defaults=True):
    """The last event of a complete answer."""

    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: Timings
    batch_size: int  # sequences in this one's first step, itself included
    text: str | None = None  # the whole answer, only with `stream: false`
    lease: LeaseGrant | None = None  # only if the request had an ask


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The last event of an incomplete answer. `code` is one of the codes of `runtime.errors`."""

    code: str
    message: str


Event = Token | Done | Failed


class InferRequest(msgspec.Struct, frozen=True):
    """A plain request, for use with curl."""

    prompt: Annotated[str, Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=LONGEST_TOKENS)] = 256
    tenant: str = "demo"


class InferReply(msgspec.Struct, frozen=True):
    """`tokens` is the number of completion tokens; `served_ms` includes the wait for a slot."""

    text: str
    tokens: int
    batch_size: int
    served_ms: float
    source: Literal["inference"] = "inference"


class CancelReply(msgspec.Struct, frozen=True):
    """`cancelled` is false if no such request waits or runs here: it has ended, or never arrived."""

    id: str
    cancelled: bool


class WorkerStatus(msgspec.Struct, frozen=True):
    """The state that a worker reports. The router sizes its ledger from `slots` and `kv_tokens`, and counts by itself.

    The times are for the router's first estimates. `step_ms` is the mean of recent engine steps; before the first step
    it is `full_step_ms`, the time that the engine expects for a step at full slots. 0.0: not known.
    """

    name: str
    engine: str
    models: Annotated[list[ModelName], Meta(max_length=256)]
    slots: Annotated[int, Meta(ge=1, le=100_000)]
    queue_size: int
    running: int
    waiting: int
    draining: bool
    step_ms: Milliseconds
    prefill_ms_per_token: Milliseconds = 0.0
    kv_tokens: Annotated[int, Meta(ge=1, le=2**53)] | None = None  # for prompts and answers; None: no limit in tokens
    kv_free_tokens: int | None = None
    full_step_ms: Milliseconds = 0.0
