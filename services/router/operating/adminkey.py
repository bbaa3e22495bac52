"""Who may see and turn what concerns everyone, on the metrics listener.

Whoever shows ADMIN_TOKEN; where none is set, the token of Weir's own services (INTERNAL_TOKEN), which `make up` makes
and writes to its data folder. Without either, on loopback, whoever is on this machine and is no web page; anywhere else
nobody.

Wrong tokens are counted by one bucket for the listener: after `GUESSES` in a row it takes one every `GUESS_EVERY_S`
seconds, and until then every request is told 429 before its token is looked at. So a flood of guesses keeps the
operator out as well; it takes a client that reaches this listener, which is for loopback or an inner network.
"""

from __future__ import annotations

import asyncio

from services.contracts.problem import Details
from services.core.bucket import Bucket
from services.core.outcome import Outcome
from services.runtime.addresses import is_loopback, names_loopback
from services.runtime.errors import BadInput, Unauthorized, WeirError
from services.runtime.http import Exchange
from services.runtime.internal import shows
from services.runtime.log import Log

GUESSES = 10
GUESS_EVERY_S = 6.0


class AdminKey:
    """Asks for it."""

    def __init__(self, host: str, token: bytes, log: Log) -> None:
        self._open = is_loopback(host)
        self._token = token
        self._log = log
        self._guesses = Bucket(1 / GUESS_EVERY_S, GUESSES)

    def check(self, exchange: Exchange) -> None:
        """Raises BadInput, 403, Unauthorized, or WeirError, 429, after too many wrong tokens."""
        if not self._token:
            if self._open and names_loopback(exchange.header(b"host")):
                return
            what = "/" + exchange.path.split("/")[1]
            raise BadInput(f"{what} is off here; beyond loopback it needs ADMIN_TOKEN", status=403, code="forbidden")
        now = asyncio.get_running_loop().time()
        if (wait_s := self._guesses.wait_s(now)) > 0:
            raise _too_many(wait_s)
        shown = exchange.header(b"authorization")
        if shows(shown, self._token):
            return
        if shown is not None:
            self._guesses.try_take(now)
            self._log.warning("a wrong admin token was shown", path=exchange.path[:200])
        raise Unauthorized("the admin token is needed: send `Authorization: Bearer TOKEN`")


def _too_many(wait_s: float) -> WeirError:
    return WeirError(
        Outcome.YIELD,
        "too many wrong admin tokens were shown here",
        status=429,
        code="too_many_attempts",
        details=Details(retry_hint_ms=int(wait_s * 1000) + 1),
    )
