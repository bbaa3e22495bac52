"""Reads a large body only from a client with a known key."""

from __future__ import annotations

from services.router.tenancy.tenants import FileTenants
from services.runtime.errors import Unauthorized, WeirError
from services.runtime.guard import SMALL_BODY_BYTES
from services.runtime.http import Exchange, HeadCheck


def key_before_body(tenants: FileTenants) -> HeadCheck:
    """A check of the head: without a known key, a body above 16 KiB or in chunks is answered 401 without being read.

    A smaller body takes the usual way: its 401 is counted as a request, and its connection stays open.
    """

    def check(exchange: Exchange, body_bytes: int) -> WeirError | None:
        if body_bytes <= SMALL_BODY_BYTES:
            return None
        try:
            tenants.by_header(exchange.header)
        except Unauthorized as refusal:
            return refusal
        return None

    return check
