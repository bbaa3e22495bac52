"""One run: the network, the processes, the load, the faults; then the logs are read."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from time import perf_counter

from loadtests.cluster.processes import StandError
from loadtests.cluster.settling import left_over
from loadtests.report.progress import SAY_EVERY_S, Say
from loadtests.runs.beside import beside
from loadtests.runs.integrity.logs import read_router_log
from loadtests.runs.many.addresses import net_of
from loadtests.runs.many.asking import Asking
from loadtests.runs.many.deck import deal
from loadtests.runs.many.injection import Injection
from loadtests.runs.many.namespaces import entered, lacking, made
from loadtests.runs.many.record import Clock, Observed, read_ejections, read_worker_log
from loadtests.runs.many.sizes import Sizes
from loadtests.runs.many.stand import Stand, standing
from loadtests.stillness import Stillness

SETTLED_WITHIN_S = 10.0


async def play(sizes: Sizes, folder: Path, say: Say) -> Observed:
    """Play a run, with the logs of all processes in `folder`, which is emptied first.

    Raises StandError if the machine lacks something, a process does not start or come back, or the run takes far longer
    than it should. Everything is stopped and removed in every case.
    """
    if why := lacking():
        raise StandError(why)
    net = net_of(sizes.routers, sizes.workers)
    faults = deal(sizes.seed, sizes.faults, net)
    for number, fault in enumerate(faults, 1):
        say(f"seed {sizes.seed}, fault {number}: {fault}")
    with made(net), entered(net.client):
        _empty(folder)  # now that no other run goes on
        try:
            async with asyncio.timeout(sizes.limit_s) as limit, standing(net, sizes, folder) as stand:
                return await _played(stand, Injection(stand, faults, sizes), sizes, say)
        except TimeoutError:
            if limit.expired():
                raise StandError(f"the run was not over after {sizes.limit_s:.0f} s: see {folder}") from None
            raise


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


async def _played(stand: Stand, injection: Injection, sizes: Sizes, say: Say) -> Observed:
    clock, still = Clock(), Stillness(stand.router_pids)
    asking = Asking(sizes, stand.router_urls)
    async with beside(still.beat(), _progress(say, asking, injection)):
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(asking.run())
            await injection.run()
            asking.stop()
            await sending
        held = await left_over(stand.held, SETTLED_WITHIN_S)
    ended = stand.ended()
    await stand.stop()  # which flushes the logs
    processes = stand.processes
    return Observed(
        sizes.slots,
        entries=asking.entries,
        workers=[read_worker_log(node.name, processes[node.name].log, clock) for node in stand.net.workers],
        routers={node.name: read_router_log(processes[node.name].log) for node in stand.net.routers},
        ejections=[
            ejection
            for node in stand.net.routers
            for ejection in read_ejections(node.name, processes[node.name].log, clock)
        ],
        spans=injection.spans,
        stretches=injection.stretches,
        still=still.between,
        unasked=asking.unasked,
        late=asking.late,
        held=held,
        ended=ended,
    )


async def _progress(say: Say, asking: Asking, injection: Injection) -> None:
    began = perf_counter()
    while True:
        await asyncio.sleep(SAY_EVERY_S)
        ended = ", ".join(f"{name} {count:,}" for name, count in sorted(asking.verdicts.items()))
        left_s = max(0.0, injection.sizes.takes_s - (perf_counter() - began))
        say(f"about {left_s:.0f} s left; {len(injection.spans)} of {len(injection.faults)} faults over; {ended}")
