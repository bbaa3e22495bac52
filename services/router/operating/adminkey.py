"""Who may use /admin and the console on the metrics listener: docs/operations/admin.md.

One bucket counts the wrong tokens of the listener: after GUESSES in a row it accepts one every GUESS_EVERY_S seconds,
and answers 429 meanwhile without looking at the token. A flood of guesses locks the operator out too; the listener is
for loopback or an internal network.
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
    def __init__(self, host: str, token: bytes, log: Log) -> None:
        self._open = is_loopback(host)
        self._token = token
        self._log = log
        self._guesses = Bucket(1 / GUESS_EVERY_S, GUESSES)

    def check(self, exchange: Exchange) -> None:
        """Raises BadInput, 403, without a token off loopback; Unauthorized; WeirError, 429, after too many guesses."""
        if not self._token:
            if self._open and names_loopback(exchange.header(b"host")):
                return
            what = "/" + exchange.path.split("/")[1]
            raise BadInput(
                f"{what} is disabled: a listener beyond loopback needs ADMIN_TOKEN", status=403, code="forbidden"
            )
        now = asyncio.get_running_loop().time()
        if (wait_s := self._guesses.wait_s(now)) > 0:
            raise _too_many(wait_s)
        shown = exchange.header(b"authorization")
        if shows(shown, self._token):
            return
        if shown is not None:
            self._guesses.try_take(now)
            self._log.warning("wrong admin token", path=exchange.path[:200])
        raise Unauthorized("the admin token is needed: send `Authorization: Bearer TOKEN`")


def _too_many(wait_s: float) -> WeirError:
    return WeirError(
        Outcome.YIELD,
        "too many wrong admin tokens",
        status=429,
        code="too_many_attempts",
        details=Details(retry_hint_ms=int(wait_s * 1000) + 1),
    )
