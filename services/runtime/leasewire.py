"""Asks and grants of `core.leases` as wire types, and back. Seconds there are milliseconds on the wire."""

from __future__ import annotations

from collections.abc import Iterable

from services.contracts.lease import EndedRequest, LeaseAsk, LeaseGrant, LeaseWant
from services.core.leases.messages import Ask, Grant, Want


def wire_ask(
    ask: Ask, count: tuple[int, int] | None = None, ended: Iterable[EndedRequest] = (), overloaded: int = 0
) -> LeaseAsk:
    """As it is sent. `count`, `ended` and `overloaded`: for a desk (`LeaseAsk`)."""
    wants = [LeaseWant(*want) for want in ask.wants]
    return LeaseAsk(
        ask.router, ask.stamp, ask.ack, ask.keep, wants, ask.quantum, ask.ttl_s * 1000.0,
        count, list(ended), overloaded,
    )  # fmt: skip


def ask_of(sent: LeaseAsk) -> Ask:
    """As it was meant."""
    wants = tuple([Want(each.class_name, each.requests, each.light, each.level, each.turn) for each in sent.wants])
    return Ask(sent.router, sent.stamp, sent.ack, sent.keep, wants, sent.quantum, sent.ttl_ms / 1000.0)


def wire_grant(grant: Grant) -> LeaseGrant:
    """As it is sent."""
    return LeaseGrant(
        grant.stamp, grant.echo, grant.may, grant.ttl_s * 1000.0, grant.slots, grant.recall, dict(grant.lowest)
    )


def grant_of(sent: LeaseGrant) -> Grant:
    """As it was meant."""
    lowest = tuple(sent.lowest.items())
    return Grant(sent.stamp, sent.echo, sent.may, sent.ttl_ms / 1000.0, sent.slots, sent.recall, lowest)
