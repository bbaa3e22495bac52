"""Asking a part of the stack for a page, once: what it says in time, or nothing."""

from __future__ import annotations

import asyncio

from services.runtime.keepalive import Pool
from services.runtime.upstream import UpstreamError


async def page_of(url: str, target: bytes, *, within_s: float, most_bytes: int, token: bytes = b"") -> bytes | None:
    """The body of a 200; None for any other answer, and where there is none in time."""
    pool = Pool(url, max_connections=1, token=token)
    try:
        async with asyncio.timeout(within_s):
            with await pool.request(b"GET", target) as reply:
                body = await reply.read(most_bytes)
        return body if reply.status == 200 else None
    except (UpstreamError, TimeoutError):
        return None
    finally:
        pool.close()
