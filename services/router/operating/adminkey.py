"""Who may see and turn what concerns everyone, on the metrics listener.

Where that listens on loopback, and no token is set, whoever is on this machine; anywhere else whoever shows
ADMIN_TOKEN, and without one nobody.
"""

from __future__ import annotations

import hmac

from services.router.tenancy.keys import bearer
from services.runtime.addresses import is_loopback, names_loopback
from services.runtime.errors import BadInput, Unauthorized
from services.runtime.http import Exchange


class AdminKey:
    """Asks for it."""

    def __init__(self, host: str, token: str) -> None:
        self._open = is_loopback(host)
        self._token = token.encode()

    def check(self, exchange: Exchange) -> None:
        """Raises BadInput, 403, or Unauthorized."""
        if not self._token:
            if self._open and names_loopback(exchange.header(b"host")):
                return
            what = "/" + exchange.path.split("/")[1]
            raise BadInput(f"{what} is off here; beyond loopback it needs ADMIN_TOKEN", status=403, code="forbidden")
        shown = bearer(exchange.header(b"authorization"))
        if shown is None or not hmac.compare_digest(shown, self._token):
            raise Unauthorized("the admin token is needed: send `Authorization: Bearer TOKEN`")
