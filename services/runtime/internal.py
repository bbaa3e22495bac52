"""What Weir's own services ask of one another: a shared token, and listeners on loopback or an inner network.

Retrieval believes the tenant that its caller names, a worker computes whatever it is sent, and metrics name every
tenant. So their listeners are for Weir's own services. Where INTERNAL_TOKEN is set, every request to them carries
`Authorization: Bearer TOKEN` (RFC 6750), except for the health checks, which tell nothing of a tenant. `make up` and
compose make a token by themselves. Without one a listener on loopback takes what comes from this machine and is no web
page's (`hostcheck`), and a listener on any other address does not start, unless INNER_NETWORK says that only Weir's
services reach it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from services.runtime.errors import Unauthorized, WeirError
from services.runtime.health import HEALTH_ROUTES
from services.runtime.hostcheck import PageCheck
from services.runtime.http import Exchange, HeadCheck

ASKED = (
    "this listener is for Weir's own services: send `Authorization: Bearer TOKEN` with INTERNAL_TOKEN "
    "(`make up` writes it to DATA_DIR/internal-token)"
)


class TokenCheck:
    """A `HeadCheck`: who shows the token may come; what is open to others is held to `strangers`' checks.

    A page in a browser does not know the token, so the name by which a request with it came does not matter.
    """

    __slots__ = ("_is_open", "_strangers", "_token")

    def __init__(self, token: bytes, is_open: Callable[[str], bool], strangers: tuple[HeadCheck, ...]) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token = token
        self._is_open = is_open
        self._strangers = strangers

    def __call__(self, exchange: Exchange, body_bytes: int) -> WeirError | None:
        """Judge the request by its Authorization."""
        if shows(exchange.header(b"authorization"), self._token):
            return None
        if not self._is_open(exchange.path):
            return Unauthorized(ASKED)
        return first_refusal(self._strangers, exchange, body_bytes)


def shows(authorization: bytes | None, token: bytes) -> bool:
    """Whether it is `Bearer TOKEN`; compared in constant time."""
    if authorization is None:
        return False
    scheme, _, shown = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(b" \t"), token)


def first_refusal(checks: tuple[HeadCheck, ...], exchange: Exchange, body_bytes: int) -> WeirError | None:
    """The first that one of them has."""
    return next((refusal for check in checks if (refusal := check(exchange, body_bytes)) is not None), None)


def is_health(path: str) -> bool:
    """What the health checks of containers and supervisors ask for."""
    return path in HEALTH_ROUTES


def nothing(path: str) -> bool:
    """No path is open."""
    return False


def inner_checks(
    host: str, *, token: bytes, allowed_hosts: str = "", is_open: Callable[[str], bool] = nothing
) -> tuple[HeadCheck, ...]:
    """The checks of a listener for Weir's own services, on this address."""
    strangers: tuple[HeadCheck, ...] = (PageCheck(host, allowed_hosts),)
    return (TokenCheck(token, is_open, strangers),) if token else strangers
