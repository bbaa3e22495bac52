"""What is done to the workers during a load: they become slow, for a while, and heal by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loadtests.cluster.meters import Meter
from loadtests.cluster.stand import Server, Stand
from loadtests.faults import slow as faults
from loadtests.load.client import START_IN_S
from loadtests.runs.drill import Trouble

STANDSTILL = 50.0  # a token every half second: nothing is answered in time, and nobody is told that anything is wrong
WITHIN_S = 5.0


def slow(factor: float, from_s: float, to_s: float, workers: slice = slice(None)) -> Trouble:
    """These workers take so many times as long, from second to second of the load."""

    async def trouble(stand: Stand) -> Meter:
        await asyncio.sleep(START_IN_S + from_s)
        await asyncio.to_thread(put, stand.workers[workers], factor, to_s - from_s)
        return Meter()

    return trouble


def put(workers: Sequence[Server], factor: float, for_s: float) -> None:
    """Tell each. Raises OSError where one does not take it."""
    for worker in workers:
        faults.put(worker.metrics_url.removesuffix("/metrics"), factor, for_s, within_s=WITHIN_S)
