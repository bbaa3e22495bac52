"""`/console/storm`: forwards to the storm bench, a separate process (`loadtests.storm`).

In lab mode with STORM_URL only. The caller checks writes (`services/console/guard.py`); here every exchange is bounded
in bytes, time and number, and an unreachable bench is a 503.
"""

from __future__ import annotations

import asyncio

from services.core.outcome import Outcome
from services.router.config import RouterSettings
from services.runtime.errors import Refused, TooLarge
from services.runtime.http import Exchange, Handler
from services.runtime.keepalive import Pool
from services.runtime.upstream import UpstreamError

MAX_BODY_BYTES = 16_384
MAX_ANSWER_BYTES = 4 * 1_048_576
MAX_CONNECTIONS = 32
WITHIN_S = 5.0
HINT_MS = 2000.0
PREFIX = "/console/storm"
PASSED = (
    b"content-security-policy",
    b"content-disposition",
    b"cache-control",
    b"x-content-type-options",
    b"referrer-policy",
)
GONE = "the storm bench does not answer; start it with `python -m loadtests.storm`, or restart `make up`"


def storm_routes(settings: RouterSettings) -> dict[tuple[str, str], Handler]:
    """(METHOD, path) -> handler; empty without a storm bench."""
    if not settings.storm_url or settings.tenants_file is not None:
        return {}
    pool = Pool(settings.storm_url, max_connections=MAX_CONNECTIONS, max_idle=4, token=settings.shared_token)

    async def forward(exchange: Exchange) -> None:
        await _forward(pool, exchange)

    methods = (("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/run"), ("GET", "/report"))
    return {(method, PREFIX + rest): forward for method, rest in methods}


async def _forward(pool: Pool, exchange: Exchange) -> None:
    if len(exchange.body) > MAX_BODY_BYTES:
        raise TooLarge(f"a storm request has at most {MAX_BODY_BYTES} bytes")
    target = b"/storm" + exchange.path.removeprefix(PREFIX).encode("ascii")
    target += b"?" + exchange.query if exchange.query else b""
    headers = ((b"content-type", b"application/json"), (b"x-weir-console", b"1"))
    try:
        async with asyncio.timeout(WITHIN_S):
            with await pool.request(
                exchange.method.encode("ascii"), target, body=exchange.body, headers=headers
            ) as reply:
                body = await reply.read(MAX_ANSWER_BYTES)
    except (UpstreamError, TimeoutError):
        refusal = Refused(Outcome.NO_CAPACITY, GONE, reason="storm_gone", retry_hint_ms=HINT_MS)
        refusal.code = "storm_gone"
        raise refusal from None
    kept = [(name, value) for name, value in reply.headers if name in PASSED]
    content_type = reply.header(b"content-type") or b"application/json"
    await exchange.reply(reply.status, body, content_type=content_type, headers=kept)
