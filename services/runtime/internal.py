"""The token of Weir's own services (INTERNAL_TOKEN), as a check of a listener.

Retrieval trusts the tenant that its caller names, and a worker computes every request. With a token every request but
health checks carries `Authorization: Bearer TOKEN` (RFC 6750). Without one, see docs/operations/access.md.
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
    """A `HeadCheck` that accepts requests with the token. Without it, open paths have the checks `without`, others 401.

    A page in a browser does not know the token, so no Host is checked. Raises ValueError for an empty token.
    """

    __slots__ = ("_is_open", "_token", "_without")

    def __init__(self, token: bytes, is_open: Callable[[str], bool], without: tuple[HeadCheck, ...]) -> None:
        if not token:
            raise ValueError("the token must not be empty")
        self._token = token
        self._is_open = is_open
        self._without = without

    def __call__(self, exchange: Exchange, body_bytes: int) -> WeirError | None:
        if shows(exchange.header(b"authorization"), self._token):
            return None
        if not self._is_open(exchange.path):
            return Unauthorized(ASKED)
        return first_refusal(self._without, exchange, body_bytes)


def shows(authorization: bytes | None, token: bytes) -> bool:
    """Whether the header is `Bearer TOKEN`; compared in constant time."""
    if authorization is None:
        return False
    scheme, _, shown = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(b" \t"), token)


def first_refusal(checks: tuple[HeadCheck, ...], exchange: Exchange, body_bytes: int) -> WeirError | None:
    return next((refusal for check in checks if (refusal := check(exchange, body_bytes)) is not None), None)


def is_health(path: str) -> bool:
    return path in HEALTH_ROUTES


def nothing(path: str) -> bool:
    return False


def inner_checks(
    host: str, *, token: bytes, allowed_hosts: str = "", is_open: Callable[[str], bool] = nothing
) -> tuple[HeadCheck, ...]:
    """The checks of a listener on this address that is for Weir's own services."""
    page_check: tuple[HeadCheck, ...] = (PageCheck(host, allowed_hosts),)
    return (TokenCheck(token, is_open, page_check),) if token else page_check
