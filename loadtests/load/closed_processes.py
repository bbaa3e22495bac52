"""A closed loop from several client processes, each on a core of its own: one process cannot keep many routers busy."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from time import perf_counter  # Linux has one clock of this kind for all processes
from typing import NamedTuple

import uvloop

from loadtests.load.closed import LoopResults, closed_number


class Sent(NamedTuple):
    """What one client process sent, from `began` to `ended`."""

    began: float
    ended: float
    results: LoopResults


class Clients:
    """`connections` are spread over the processes. Results are those of all."""

    def __init__(self, pools: Sequence[ProcessPoolExecutor], connections: int) -> None:
        self._pools = pools
        self._connections = [connections // len(pools) + (i < connections % len(pools)) for i in range(len(pools))]

    async def send(self, port: int, requests: Sequence[bytes], number: int) -> LoopResults:
        """Sends at least `number` requests. Each client process begins elsewhere among `requests`."""
        loop, count = asyncio.get_running_loop(), len(self._pools)
        each = -(-number // count)
        sending = []
        for place, (pool, connections) in enumerate(zip(self._pools, self._connections, strict=True)):
            at = place * len(requests) // count
            own = [*requests[at:], *requests[:at]]
            sending.append(loop.run_in_executor(pool, _send, port, own, connections, each))
        return together(await asyncio.gather(*sending))


@contextmanager
def clients(cores: Sequence[int], connections: int) -> Iterator[Clients]:
    """A client process on each of these cores."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, context, initializer=os.sched_setaffinity, initargs=(0, {core})))
            for core in cores
        ]
        yield Clients(pools, connections)


def together(sent: Sequence[Sent]) -> LoopResults:
    """All answers, over the time from the first process's begin to the last one's end."""
    found = LoopResults(wall_s=max(one.ended for one in sent) - min(one.began for one in sent))
    for one in sent:
        found.seconds += one.results.seconds
        for status, count in one.results.statuses.items():
            found.statuses[status] = found.statuses.get(status, 0) + count
    return found


def _send(port: int, requests: Sequence[bytes], connections: int, number: int) -> Sent:
    began = perf_counter()
    results = uvloop.run(closed_number(port, requests, connections, number))
    return Sent(began, perf_counter(), results)
