"""A storm's faults, each in a task that starts and ends it.

A worker's fault is set for a few seconds and renewed, so it ends even if the bench is killed. The requests run on the
bench's event loop; `faults.slow` would block it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import msgspec

from loadtests.scenarios.arrivals import Span
from loadtests.scenarios.model import Failure
from loadtests.storm.config import StormSettings
from loadtests.storm.scenarios import Need, Storm, failures
from loadtests.storm.silence import NotSilenced, SilentCache
from services.runtime.keepalive import Pool
from services.runtime.upstream import UpstreamError

LEASE_S = 3.0
RENEW_EVERY_S = 1.0
WITHIN_S = 1.0
MAX_BYTES = 65_536
JSON = ((b"content-type", b"application/json"),)


class NotSlowed(Exception):
    """A worker does not take faults; the message says why."""


def begin_troubles(storm: Storm, settings: StormSettings) -> list[asyncio.Task[None]]:
    """One task per fault, which ends with it; when cancelled, it ends the fault at once.

    Tasks raise NotSlowed or NotSilenced if a fault cannot be started.
    """

    async def slowed(failure: Failure) -> None:
        await asyncio.sleep(failure.from_s)
        urls, seconds = settings.fault_urls[: failure.workers], failure.until_s - failure.from_s
        await hold_slow(urls, failure.factor, seconds, settings.shared_token)

    async def silenced(silence: Span) -> None:
        await asyncio.sleep(silence.from_s)
        await SilentCache(settings.redis_url).hold(silence.until_s - silence.from_s)

    holding = (*map(slowed, failures(storm.file)), *map(silenced, storm.file.cache_silent))
    return [asyncio.ensure_future(each) for each in holding]


async def hold_slow(urls: Sequence[str], factor: float, seconds: float, token: bytes = b"") -> None:
    """Slow down the workers behind these metrics listeners for `seconds`, and reset them in every case.

    Raises NotSlowed if a worker rejects the first fault.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    refusals: AbstractContextManager[None] = nullcontext()
    try:
        while (left_s := until - loop.time()) > 0:
            fault = {"slow_factor": factor, "for_s": min(LEASE_S, left_s)}
            with refusals:
                await asyncio.gather(*(_faults(url, token, b"PUT", msgspec.json.encode(fault)) for url in urls))
            refusals = suppress(NotSlowed)
            await asyncio.sleep(max(0.0, min(RENEW_EVERY_S, until - loop.time())))
    finally:
        await asyncio.gather(*(_faults(url, token, b"DELETE") for url in urls), return_exceptions=True)


async def missing(need: Need | None, settings: StormSettings) -> str:
    """What the scenario lacks here; empty if it can run."""
    if need == "faults" and not settings.fault_urls:
        return "no simulated worker can be slowed here (STORM_FAULT_URLS)"
    if need == "redis" and not settings.redis_url:
        return "no cache is known here: REDIS_URL is empty"
    try:
        if need == "faults":
            await asyncio.gather(*(_faults(url, settings.shared_token) for url in settings.fault_urls))
        elif need == "redis":
            await SilentCache(settings.redis_url).reached()
    except (NotSlowed, NotSilenced) as error:
        return str(error)
    return ""


async def _faults(url: str, token: bytes, method: bytes = b"GET", body: bytes = b"") -> None:
    """Send a request to a worker's `/faults`. Raises NotSlowed."""
    pool = Pool(url, max_connections=1, token=token)
    try:
        async with asyncio.timeout(WITHIN_S):
            with await pool.request(method, b"/faults", body=body, headers=JSON) as reply:
                await reply.read(MAX_BYTES)
    except (UpstreamError, TimeoutError) as error:
        raise NotSlowed(f"the worker's {url}/faults does not answer: {error or 'in time'}") from error
    finally:
        pool.close()
    if reply.status != 200:
        raise NotSlowed(f"{url}/faults answers with status {reply.status}: is it a simulated worker, in a lab?")
