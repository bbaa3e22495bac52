"""Slowing simulated workers, for a while: put for a few seconds and renewed, so that it heals without us.

A worker's metrics listener takes faults where only the lab reaches it (`services/worker/faultsapp.py`). Each is put
with `for_s`, after which the worker goes back to what it did before by itself; whoever put it may be dead by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from services.runtime.keepalive import Pool
from services.runtime.upstream import UpstreamError

LEASE_S = 3.0
RENEW_EVERY_S = 1.0
WITHIN_S = 1.0
MOST_BYTES = 65_536


class Unbroken(Exception):
    """What was to be broken could not be; the message says why."""


class SlowWorkers:
    """The workers behind these metrics listeners."""

    def __init__(self, urls: Sequence[str], factor: float, token: bytes = b"") -> None:
        self._pools = [Pool(url, max_connections=4, token=token) for url in urls]
        self._factor = factor

    async def hold(self, seconds: float) -> None:
        """Slow for so long. However this ends, they are told to heal; what cannot be told heals by itself.

        Raises Unbroken if a worker does not take the fault the first time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            await self._all(b"PUT", self._body(min(LEASE_S, seconds)))
            while (left_s := until - loop.time()) > 0:
                await asyncio.sleep(min(RENEW_EVERY_S, left_s))
                if (left_s := until - loop.time()) > 0:
                    await asyncio.gather(*self._asked(b"PUT", self._body(min(LEASE_S, left_s))), return_exceptions=True)
        finally:
            await asyncio.gather(*self._asked(b"DELETE"), return_exceptions=True)
            for pool in self._pools:
                pool.close()

    def _body(self, for_s: float) -> bytes:
        return msgspec.json.encode({"slow_factor": self._factor, "for_s": for_s})

    async def _all(self, method: bytes, body: bytes) -> None:
        await asyncio.gather(*self._asked(method, body))

    def _asked(self, method: bytes, body: bytes = b"") -> list[asyncio.Task[None]]:
        return [asyncio.ensure_future(_ask(pool, method, body)) for pool in self._pools]


async def _ask(pool: Pool, method: bytes, body: bytes) -> None:
    headers = ((b"content-type", b"application/json"),)
    try:
        async with asyncio.timeout(WITHIN_S):
            with await pool.request(method, b"/faults", body=body, headers=headers) as reply:
                await reply.read(MOST_BYTES)
    except (UpstreamError, TimeoutError) as error:
        raise Unbroken(f"the worker's {pool.url}/faults does not answer: {error or 'in time'}") from error
    if reply.status != 200:
        raise Unbroken(f"{pool.url}/faults answers with status {reply.status}: is it a simulated worker, in a lab?")


async def takes_faults(urls: Sequence[str], token: bytes = b"") -> str:
    """Empty where every worker does; else what is missing."""
    pools = [Pool(url, max_connections=1, token=token) for url in urls]
    try:
        await asyncio.gather(*(_ask(pool, b"GET", b"") for pool in pools))
    except Unbroken as error:
        return str(error)
    finally:
        for pool in pools:
            pool.close()
    return ""
