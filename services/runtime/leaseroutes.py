"""The routes of a book: `POST /lease` and `GET /lease/{router}`, which the routers call where several share a pool."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import msgspec
from fastapi import FastAPI

from services.contracts.lease import LeaseAsk, LeaseGrant, LeaseWant, Number, RouterName
from services.core.outcome import Outcome
from services.runtime.api import add_native, describe
from services.runtime.errors import BadInput
from services.runtime.grantstreams import PushedGrants
from services.runtime.http import Exchange
from services.runtime.leasewire import wire_grant
from services.runtime.query import parameters
from services.runtime.strictjson import convert, decode

NDJSON = b"application/x-ndjson"
MAX_EPOCH_DIGITS = 16
EPOCH = {
    "name": "epoch",
    "in": "query",
    "required": True,
    "description": "Of the router's asks: when its process started, in milliseconds since 1970.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2**53},
}
LEASE = "/lease"
"""Each router calls it some times a second."""
LEASE_EXAMPLES = (
    LeaseAsk(
        router="router-0",
        stamp=(1795700000000, 41),
        ack=(1795700000000, 12),
        wants=[LeaseWant("default", 2, 0, 310.0, 310.0)],
        quantum=256.0,
        ttl_ms=750.0,
    ),
    LeaseGrant(stamp=(1795700000000, 13), echo=(1795700000000, 41), may=3, ttl_ms=750.0, slots=8),
)

_encode = msgspec.json.Encoder().encode


class Grantor(Protocol):
    """Answers asks, and has the streams of grants (`GrantStreams`)."""

    def answer(self, sent: LeaseAsk) -> LeaseGrant: ...

    def open(self, router: str, epoch: int) -> PushedGrants: ...

    def close(self, stream: PushedGrants) -> None: ...


class LeaseTarget(msgspec.Struct, frozen=True):
    """The path and query of `GET /lease/{router}`."""

    router: RouterName
    epoch: Number


def add_lease_routes(api: FastAPI, lending: Grantor, prefix: str = "") -> None:
    """Add the two routes, below `prefix`."""
    granted = describe(
        "What one of several routers may use here.",
        request=LeaseAsk,
        reply=LeaseGrant,
        refusals=(Outcome.BAD_INPUT,),
    )
    granted["responses"][409] = {**granted["responses"][400], "description": "no_stream"}
    pushed = describe(
        "Grants for one router as newline-delimited JSON, for as long as its lease lasts.",
        refusals=(Outcome.BAD_INPUT, Outcome.NO_CAPACITY, Outcome.DRAINING),
        parameters=[EPOCH],
    )
    answers = pushed["responses"]
    answers[200]["content"] = {NDJSON.decode(): {"schema": {"type": "string"}}}
    answers[409] = {**answers[400], "description": "older_epoch"}
    ask, stream = f"{prefix}{LEASE}", f"{prefix}{LEASE}/{{router}}"
    routes = {("POST", ask): partial(_lease, lending), ("GET", stream): partial(_grants, lending)}
    add_native(api, routes, {ask: granted, stream: pushed})


async def _lease(lending: Grantor, exchange: Exchange) -> None:
    """POST /lease: what the router may use now."""
    await exchange.reply(200, _encode(lending.answer(decode(exchange.body, LeaseAsk))))


async def _grants(lending: Grantor, exchange: Exchange) -> None:
    """GET /lease/{router}: each grant that is pushed to this router, the newest if the router reads slowly. The lease
    ends with the stream.
    """
    target = _target(exchange)
    stream = lending.open(target.router, target.epoch)
    exchange.on_gone(partial(lending.close, stream))
    try:
        await exchange.start(200, NDJSON)
        await exchange.write(b"")  # the head, at once
        while await stream.is_offered():
            await exchange.write(b"")  # waits until the router has read what was written
            await exchange.write(_encode(wire_grant(stream.take())) + b"\n")
        await exchange.end()
    finally:
        lending.close(stream)


def _target(exchange: Exchange) -> LeaseTarget:
    """Raises BadInput that names the field."""
    text = parameters(exchange.query, ("epoch",)).get("epoch", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_EPOCH_DIGITS):
        raise BadInput("epoch: must be a whole number, in milliseconds since 1970", "epoch")
    return convert({"router": exchange.tail, "epoch": int(text)}, LeaseTarget)
