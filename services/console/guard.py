"""What keeps other web sites away from what the console may change.

A page of any site can make a visitor's browser send requests to this machine. It cannot add a header of its own without
asking first, which nobody here answers, and it cannot forge its `Origin`. So a write needs both: the header that the
console adds, and an origin, where one is sent, that is this very host. And the host must be one that no name server
can have pointed here (DNS rebinding): an address, `localhost`, or a name without a dot.
"""

from __future__ import annotations

from services.runtime.addresses import is_fixed
from services.runtime.errors import BadInput
from services.runtime.hostcheck import is_own_origin
from services.runtime.http import Exchange, Handler

HEADER = b"x-weir-console"


def guarded(handler: Handler) -> Handler:
    """The same, for those who may write."""

    async def handle(exchange: Exchange) -> None:
        check_write(exchange)
        await handler(exchange)

    return handle


def check_write(exchange: Exchange) -> None:
    """Raises BadInput, 403, for what did not come from the console, or from a program that says so."""
    host, origin = exchange.header(b"host"), exchange.header(b"origin")
    if exchange.header(HEADER) != b"1":
        raise _forbidden("what changes something needs the header `x-weir-console: 1`")
    if origin is not None and not is_own_origin(origin, host):
        raise _forbidden("another site's page may not do this")
    if not is_fixed(host):
        raise _forbidden("what changes something is taken at an address or localhost only, not under this name")


def _forbidden(message: str) -> BadInput:
    return BadInput(message, status=403, code="forbidden")
