"""Protects writes of the console from other web sites.

A page of any site can make a visitor's browser send requests here, but it cannot set a header without a CORS preflight,
which no route here grants, and it cannot forge `Origin`. So a write needs the console's header and, where an origin is
sent, one that is this host. The host must not be a name that DNS rebinding could point here: an address, `localhost`,
or a name without a dot.
"""

from __future__ import annotations

from services.runtime.addresses import is_fixed
from services.runtime.errors import BadInput
from services.runtime.hostcheck import is_own_origin
from services.runtime.http import Exchange, Handler

HEADER = b"x-weir-console"


def guarded(handler: Handler) -> Handler:
    """`handler`, behind `check_write`."""

    async def handle(exchange: Exchange) -> None:
        check_write(exchange)
        await handler(exchange)

    return handle


def check_write(exchange: Exchange) -> None:
    """Raises BadInput, 403, for a write without the header, from another site or under another host name."""
    host, origin = exchange.header(b"host"), exchange.header(b"origin")
    if exchange.header(HEADER) != b"1":
        raise _forbidden("requests that change something need the header `x-weir-console: 1`")
    if origin is not None and not is_own_origin(origin, host):
        raise _forbidden("cross-origin request rejected")
    if not is_fixed(host):
        raise _forbidden(
            "requests that change something are accepted at an IP address or localhost only, not under this host name"
        )


def _forbidden(message: str) -> BadInput:
    return BadInput(message, status=403, code="forbidden")
