"""Readings before and after a load: the workers' meters, the router's counters and processor time."""

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
    """`books` is None for a gateway without readable counters."""

    meter: Meter
    books: Counter[str] | None
    cpu: Cpu


@dataclass(frozen=True, slots=True)
class Used:
    """What a load used, and by outcome how many more tries the router counted than the client."""

    meter: Meter
    cpu: Cpu
    miscounted: Mapping[str, int]


async def read(stand: Stand) -> Readings:
    """Read now. Raises OSError if a process does not answer."""
    used = cpu.read(stand)
    urls = [server.metrics_url for server in stand.fronts if server.metrics_url]
    texts = [(await asyncio.to_thread(get, url)).decode() for url in urls]
    counted = sum(map(books.of_router, texts), Counter[str]()) if urls else None
    return Readings(await meters.read(stand.workers), counted, used)


def between(before: Readings, after: Readings, lost: Meter, tries: Mapping[str, int]) -> Used:
    """`lost`: counts of ended workers. `tries`: the client's own counts."""
    miscounted: Mapping[str, int] = {}
    if before.books is not None and after.books is not None:
        miscounted = books.differences(before.books, after.books, books.of_client(tries))
    return Used(after.meter + lost - before.meter, after.cpu - before.cpu, miscounted)
