"""A large body is read only from a client whose key is known."""

from __future__ import annotations

from services.router.tenancy.tenants import FileTenants
from services.runtime.errors import Unauthorized, WeirError
from services.runtime.guard import SMALL_BODY_BYTES
from services.runtime.http import Exchange, HeadCheck


def key_before_body(tenants: FileTenants) -> HeadCheck:
    """A head check that refuses a body above 16 KiB, or one in chunks, without a known key: 401, and not read.

    A request with a smaller body goes the ordinary way: its 401 is counted with the other requests, and its connection
    stays open.
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
