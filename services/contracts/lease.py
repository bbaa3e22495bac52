"""Router -> worker or desk, where several routers share a pool: `POST /lease` and `GET /lease/{router}`.

`POST /lease` takes an ask and answers with a grant. `GET /lease/{router}?epoch=...` answers 200 with grants as lines of
JSON (`application/x-ndjson`), one whenever a slot is lent or recalled; its end is the end of the lease. An ask also
goes with each request (`GenerateRequest.lease`), and a grant with each complete answer (`Done.lease`).

Values are absolute: a repeated, late or lost message is harmless. `services/core/leases` says what they do.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_WANTS = 32
"""Classes in one message."""
MAX_ENDED = 64
"""Ended requests in one message."""

RouterName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._:-]+\Z")]
ClassName = Annotated[str, Meta(max_length=256)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Stamp = tuple[Number, Number]
"""(epoch, sequence number): when the sender's process started, in milliseconds since 1970, and the message's number."""
Slots = Annotated[int, Meta(ge=0, le=1_000_000)]
Tokens = Annotated[float, Meta(ge=-1e18, le=1e18)]
Seconds = Annotated[float, Meta(ge=0, le=1e6)]
EndedRequest = tuple[Seconds, Number, Number]
"""(time from its dispatch to its end, tokens of its prompt, tokens of its answer): all 0 without an answer."""


class LeaseWant(msgspec.Struct, frozen=True):
    """What waits at the router in one class and could start at this worker: how many requests, and how many of light
    tenants. `level` and `turn` are in tokens per unit of weight.
    """

    class_name: ClassName
    requests: Slots
    light: Slots
    level: Tokens
    turn: Tokens


class LeaseAsk(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ack`: the stamp of the last grant that it received. `keep`: it gives back what it has above this. `count`, for a
    desk, which sees no requests: the number of this message on its stream, and the router's requests in flight at the
    server. `ended`, also for a desk: its requests that have ended there since its last message, in place of older ones
    if there are more than MAX_ENDED. `overloaded` is the number of others, that the server refused for lack of
    capacity or did not answer.
    """

    router: RouterName
    stamp: Stamp
    ack: Stamp
    keep: Slots | None = None
    wants: Annotated[list[LeaseWant], Meta(max_length=MAX_WANTS)] = []
    quantum: Annotated[float, Meta(ge=0, le=1e18)] = 0.0
    ttl_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0
    count: tuple[Number, Slots] | None = None
    ended: Annotated[list[EndedRequest], Meta(max_length=MAX_ENDED)] = []
    overloaded: Annotated[int, Meta(ge=0, le=MAX_ENDED)] = 0


class LeaseGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """At most `may` requests of this router may be in flight at the worker, until `ttl_ms` after it sent the ask with
    the stamp `echo`. `slots`: of the worker, over all routers. `recall`: idle slots are to be given back. `lowest`: by
    class, the lowest level of the other routers that wait.
    """

    stamp: Stamp
    echo: Stamp
    may: Slots
    ttl_ms: Annotated[float, Meta(ge=0, le=60_000)]
    slots: Slots
    recall: bool = False
    lowest: dict[ClassName, Tokens] = {}
