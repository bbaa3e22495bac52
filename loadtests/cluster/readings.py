"""Everything that is read before and after a load: the workers' meters, the router's books, the processor's time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from loadtests.cluster import books, cpu, meters
from loadtests.cluster.cpu import Cpu
from loadtests.cluster.meters import Meter
from loadtests.cluster.processes import get
from loadtests.cluster.stand import Stand


@dataclass(frozen=True, slots=True)
class Readings:
    """`books` is None where the gateway keeps none that we can read."""

    meter: Meter
    books: Counter[str] | None
    cpu: Cpu


@dataclass(frozen=True, slots=True)
class Used:
    """What a load used, and by outcome how many tries more the router counted than the client."""

    meter: Meter
    cpu: Cpu
    miscounted: Mapping[str, int]


async def read(stand: Stand) -> Readings:
    """Now. Raises OSError if one does not answer."""
    used = cpu.read(stand)
    url = "" if stand.router is None else stand.router.metrics_url
    said = books.of_router((await asyncio.to_thread(get, url)).decode()) if url else None
    return Readings(await meters.read(stand.workers), said, used)


def between(before: Readings, after: Readings, lost: Meter, tries: Mapping[str, int]) -> Used:
    """`lost` is what workers had counted that are gone; `tries` the client's own books."""
    miscounted: Mapping[str, int] = {}
    if before.books is not None and after.books is not None:
        miscounted = books.differences(before.books, after.books, books.of_client(tries))
    return Used(after.meter + lost - before.meter, after.cpu - before.cpu, miscounted)
