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

RouterName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._:-]+\Z")]
ClassName = Annotated[str, Meta(max_length=256)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Stamp = tuple[Number, Number]
"""(epoch, sequence number): when the sender's process started, in milliseconds since 1970, and the message's number."""
Slots = Annotated[int, Meta(ge=0, le=1_000_000)]
Tokens = Annotated[float, Meta(ge=-1e18, le=1e18)]


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
    server.
    """

    router: RouterName
    stamp: Stamp
    ack: Stamp
    keep: Slots | None = None
    wants: Annotated[list[LeaseWant], Meta(max_length=MAX_WANTS)] = []
    quantum: Annotated[float, Meta(ge=0, le=1e18)] = 0.0
    ttl_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0
    count: tuple[Number, Slots] | None = None


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
