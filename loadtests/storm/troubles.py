"""A plan's troubles, begun and ended in their time, each in a task of its own that mends what it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loadtests.storm.config import StormSettings
from loadtests.storm.plan import Trouble
from loadtests.storm.scenarios import Need
from loadtests.storm.silence import NotSilenced, SilentCache
from loadtests.storm.slowing import SlowWorkers, takes_faults


def begin_troubles(troubles: Sequence[Trouble], settings: StormSettings) -> list[asyncio.Task[None]]:
    """One task for each, which ends when its trouble is over; cancelled, it mends at once."""
    return [asyncio.ensure_future(_hold(trouble, settings)) for trouble in troubles]


async def _hold(trouble: Trouble, settings: StormSettings) -> None:
    await asyncio.sleep(trouble.from_s)
    seconds = trouble.until_s - trouble.from_s
    if trouble.kind == "cache":
        await SilentCache(settings.redis_url).hold(seconds)
        return
    urls = settings.fault_urls if trouble.kind == "all_workers" else settings.fault_urls[:1]
    await SlowWorkers(urls, trouble.factor, settings.shared_token).hold(seconds)


async def missing(need: Need | None, settings: StormSettings) -> str:
    """Empty where a scenario has all that it must be able to switch; else what it lacks."""
    if need == "faults":
        if not settings.fault_urls:
            return "no simulated worker can be slowed here (STORM_FAULT_URLS)"
        return await takes_faults(settings.fault_urls, settings.shared_token)
    if need == "redis":
        if not settings.redis_url:
            return "no cache is known here: REDIS_URL is empty"
        try:
            await SilentCache(settings.redis_url).reached()
        except NotSilenced as error:
            return str(error)
    return ""
