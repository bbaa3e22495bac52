"""A storm's troubles, begun and ended in their time, each in a task of its own that mends what it broke.

A worker's fault is put for a few seconds and renewed, so that it heals without us: the bench may be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from loadtests.faults import slow
from loadtests.scenarios.model import Failure, Silence
from loadtests.storm.config import StormSettings
from loadtests.storm.scenarios import Need, Storm, failures
from loadtests.storm.silence import NotSilenced, SilentCache

LEASE_S = 3.0
RENEW_EVERY_S = 1.0
WITHIN_S = 1.0


def begin_troubles(storm: Storm, settings: StormSettings) -> list[asyncio.Task[None]]:
    """One task for each, which ends when its trouble is over; cancelled, it mends at once.

    It raises slow.NoFault or NotSilenced where what is to be broken cannot be.
    """

    async def slowed(failure: Failure) -> None:
        await asyncio.sleep(failure.from_s)
        await hold_slow(settings.fault_urls[: failure.workers], failure.factor, failure.until_s - failure.from_s)

    async def silenced(silence: Silence) -> None:
        await asyncio.sleep(silence.from_s)
        await SilentCache(settings.redis_url).hold(silence.until_s - silence.from_s)

    holding = (*map(slowed, failures(storm.file)), *map(silenced, storm.file.cache_silent))
    return [asyncio.ensure_future(each) for each in holding]


async def hold_slow(urls: Sequence[str], factor: float, seconds: float) -> None:
    """The workers behind these metrics listeners are slow for so long. However it ends, they are told to heal.

    Raises slow.NoFault if a worker does not take the fault the first time.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    refusals: AbstractContextManager[None] = nullcontext()
    try:
        while (left_s := until - loop.time()) > 0:
            with refusals:
                await _all(slow.put, urls, factor, min(LEASE_S, left_s))
            refusals = suppress(slow.NoFault)
            await asyncio.sleep(min(RENEW_EVERY_S, until - loop.time()))
    finally:
        await asyncio.gather(*(_all(slow.mend, [url]) for url in urls), return_exceptions=True)


async def missing(need: Need | None, settings: StormSettings) -> str:
    """Empty where a scenario has all that it must be able to break; else what it lacks."""
    if need == "faults" and not settings.fault_urls:
        return "no simulated worker can be slowed here (STORM_FAULT_URLS)"
    if need == "redis" and not settings.redis_url:
        return "no cache is known here: REDIS_URL is empty"
    try:
        if need == "faults":
            await _all(slow.check, settings.fault_urls)
        elif need == "redis":
            await SilentCache(settings.redis_url).reached()
    except (slow.NoFault, NotSilenced) as error:
        return str(error)
    return ""


async def _all(ask: Callable[..., None], urls: Sequence[str], *more: float) -> None:
    """Ask every worker at once. Raises slow.NoFault for the first that refuses."""
    await asyncio.gather(*(asyncio.to_thread(ask, url, *more, within_s=WITHIN_S) for url in urls))
