"""Looks at every worker at a steady pace, at once when one is suspected, and believes what it sees (`health.py`).

Probes tell what a worker announces and whether it lives; that it has a place is the ledger's to know. What requests
meet counts as much: a lost connection keeps new requests away until the worker has answered a probe, failures in a
row eject it, and one that refuses is left alone for as long as it said.

Cost. A worker is looked at once an interval, and not more than MAX_PROBES_PER_S of those that are well: with 256 of
them the interval grows to 8 s. Nothing is lost by that while requests flow, since they notice first. Those that are
not well have a budget of the same size, so that one that comes back is seen soon. The pauses are spread by chance, or
the probes of a large fleet would come together; a suspect is looked at after LOOK_AGAIN_S and not sooner, however
many requests suspect it.

Its own standing still is no worker's silence. A router that gets no processor for a second finds a time-out passed and
every answer unread, and would hold the whole fleet for dead; so the time-out is counted in pieces (`awake_for`). That
a watcher is the first to be doubted is Lifeguard's idea (Dadgar et al., 2018).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from random import Random

from services.router.upstreams.call import Busy, Probe
from services.router.workers.fleet import Connect, Fleet
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.errors import place_of
from services.runtime.log import Log
from services.runtime.upstream import PoolFull, UpstreamError, readable

PROBE_TIMEOUT_S = 1.0
PIECES = 10
LOOK_AGAIN_S = 0.1
MAX_PROBES_PER_S = 32
SPREAD = 0.2
LEAST_REST_S, LONGEST_REST_S = 0.05, 5.0
LACKING_LINE_S = 1.0
"""At most one line of the log in this time for what the router itself lacks."""


class _Watch:
    """The task that looks at one worker, and how to hurry it."""

    __slots__ = ("hurry", "task")

    def __init__(self, task: asyncio.Task[None], hurry: asyncio.Event) -> None:
        self.task = task
        self.hurry = hurry


class Prober:
    """One for each fleet. Tells it what has been seen; decides nothing about requests."""

    def __init__(self, fleet: Fleet, interval_s: float, log: Log, rng: Random) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._log = log
        self._rng = rng
        self._watches: dict[Worker, _Watch] = {}
        self._rests: dict[Worker, asyncio.TimerHandle] = {}
        self._unpooled = 0
        self._lacking_told_at = -inf

    async def look_at_all(self) -> None:
        """Every worker once, before the first request."""
        await asyncio.gather(*(self.probe(worker) for worker in self._fleet.workers))

    def start(self) -> None:
        """Begin to look, at a random moment of the first interval each."""
        for worker in self._fleet.workers:
            if worker not in self._watches:
                hurry = asyncio.Event()
                self._watches[worker] = _Watch(asyncio.create_task(self._watch(worker, hurry)), hurry)

    async def stop(self) -> None:
        """Stop looking and close idle connections."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.task.cancel()
        await asyncio.gather(*(watch.task for watch in watches), return_exceptions=True)
        for rest in self._rests.values():
            rest.cancel()
        self._rests.clear()
        for worker in (*self._fleet.workers, *self._fleet.leaving):
            worker.upstream.close()

    def reload(self, specs: Iterable[WorkerSpec], connect: Connect) -> None:
        """The worker list has changed: newcomers are looked at at once, those who left until they hold nothing."""
        before = set(self._fleet.workers)
        self._fleet.reload(specs, connect)
        self.start()
        after = set(self._fleet.workers)
        for worker in after - before:
            self._hurry(worker)
            self._log.info("worker joins", worker=worker.name, url=worker.url)
        for worker in before - after:
            self._log.info("worker leaves", worker=worker.name, url=worker.url, inflight=worker.inflight)

    # ---- what requests have met

    def suspect(self, worker: Worker, error: Exception) -> None:
        """A connection to it was lost or refused: it gets nothing new until it has answered a probe."""
        was = _state(worker)
        worker.health.suspect()
        self.failed(worker)
        self._tell(worker, was, str(error))
        self._hurry(worker)

    def failed(self, worker: Worker) -> None:
        """It took a request and failed it. Too many in a row, and it is ejected, if enough others are left."""
        was = _state(worker)
        if worker.health.failed() and not self._fleet.needs(worker):
            worker.health.eject(_now())
        self._tell(worker, was, f"{worker.health.failures} requests in a row failed")

    def refused(self, worker: Worker, busy: Busy) -> None:
        """It has no room, or is leaving: it gets nothing new for as long as it said, within reason."""
        if busy.draining:
            was = _state(worker)
            worker.draining = True
            self._tell(worker, was, "it said so")
            return
        rest_s = min(max(busy.delay_ms / 1000, LEAST_REST_S), LONGEST_REST_S)
        if (running := self._rests.pop(worker, None)) is not None:
            running.cancel()
        self._rests[worker] = asyncio.get_running_loop().call_later(rest_s, self._rested, worker)
        worker.resting = True
        self._fleet.looked(worker)

    def lacking(self, error: PoolFull) -> None:
        """This router has no connection or descriptor left, which says nothing about any worker."""
        now = _now()
        if now - self._lacking_told_at >= LACKING_LINE_S:
            self._lacking_told_at = now
            self._log.warning("this router can open no connection to its workers", why=str(error))

    def _rested(self, worker: Worker) -> None:
        del self._rests[worker]
        worker.resting = False
        self._fleet.looked(worker)

    # ---- probes

    async def _watch(self, worker: Worker, hurry: asyncio.Event) -> None:
        await self._pause(hurry, self._rng.random() * self._steady_s(worker))
        while worker in self._fleet.workers or worker in self._fleet.leaving:
            try:
                await self.probe(worker)
            except Exception as error:  # a fault of ours: the next look must come all the same
                self._log.error("a look at a worker failed", worker=worker.name, traceback=place_of(error))
            hurry.clear()
            await self._pause(hurry, self._pause_s(worker))
        del self._watches[worker]

    def _pause_s(self, worker: Worker) -> float:
        if worker.health.missed_probes == 1:
            return min(LOOK_AGAIN_S, self._interval_s)
        return self._steady_s(worker) * (1 + SPREAD * (self._rng.random() - 0.5))

    def _steady_s(self, worker: Worker) -> float:
        alike = sum(other.healthy is worker.healthy for other in self._watches)
        return max(self._interval_s, alike / MAX_PROBES_PER_S)

    async def _pause(self, hurry: asyncio.Event, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await hurry.wait()
            await asyncio.sleep(min(LOOK_AGAIN_S, self._interval_s))  # a restarting worker must not be hammered
        except TimeoutError:
            pass

    def _hurry(self, worker: Worker) -> None:
        if (watch := self._watches.get(worker)) is not None:
            watch.hurry.set()

    async def probe(self, worker: Worker) -> None:
        """Look once.

        One missed probe keeps new requests away; a second one in a row, or a refused connection, means that it is
        dead: what it has not begun to answer fails at once, and has its retry while there is time. A probe that could
        not be sent, since this router has no descriptor or connection left, is none.
        """
        try:
            async with awake_for(PROBE_TIMEOUT_S):
                seen = await worker.upstream.probe()
        except TimeoutError:
            self._missed(worker)
        except PoolFull as error:  # ours: it has not been looked at
            self.lacking(error)
        except Exception as error:  # whatever it is, the next look must come
            self._dead(worker, str(error) if isinstance(error, UpstreamError) else f"its probe raised {error!r}")
        else:
            self._saw(worker, seen)

    def _saw(self, worker: Worker, seen: Probe) -> None:
        was = _state(worker)
        worker.health.answered(_now(), needed=self._fleet.needs(worker))
        self._fleet.learn(worker, seen)
        self._tell(worker, was, "")
        if self._fleet.unpooled > self._unpooled:
            self._log.warning("too many models: some are not served", left_out=self._fleet.unpooled)
        self._unpooled = self._fleet.unpooled

    def _missed(self, worker: Worker) -> None:
        was, why = _state(worker), f"no answer to a probe in {PROBE_TIMEOUT_S:g} s"
        if worker.health.missed():
            self._dead(worker, why)
        self._tell(worker, was, why)

    def _dead(self, worker: Worker, why: str) -> None:
        was = _state(worker)
        worker.health.eject(_now())
        self._tell(worker, was, why)
        worker.upstream.give_up(f"the worker is gone: {why}")

    def _tell(self, worker: Worker, was: str, why: str) -> None:
        """The fleet, and the log, of a change."""
        state = _state(worker)
        self._fleet.looked(worker)
        if state != was:
            write = self._log.info if worker.healthy else self._log.warning
            write("worker " + state, worker=worker.name, url=worker.url, slots=worker.slots, why=readable(why) or None)


@asynccontextmanager
async def awake_for(limit_s: float) -> AsyncIterator[None]:
    """`asyncio.timeout`, over time for which this process ran: a piece of it counts once, however late its end is seen.

    After a second without a processor nine tenths are left, in which the answer is read that has come, or is made: a
    worker beside us has stood still as well. Never shorter than `limit_s`; longer by the router's own lateness.
    """
    loop, left = asyncio.get_running_loop(), PIECES
    piece: asyncio.TimerHandle

    def passed() -> None:
        nonlocal left, piece
        left -= 1
        if left:
            piece = loop.call_later(limit_s / PIECES, passed)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        piece = loop.call_later(limit_s / PIECES, passed)
        try:
            yield
        finally:
            piece.cancel()


def _state(worker: Worker) -> str:
    return "draining" if worker.draining else "up" if worker.healthy else "down"


def _now() -> float:
    return asyncio.get_running_loop().time()
