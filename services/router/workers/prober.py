"""Probes every worker at a steady pace, and at once when it is suspected; `health.py` decides.

Healthy workers share MAX_PROBES_PER_S: with 256 of them the interval is 8 s, since requests notice faults first.
Unhealthy ones have a budget of the same size, so that a return is seen soon. Pauses vary at random, so that the probes
of a large fleet do not coincide; a suspect is probed after LOOK_AGAIN_S, however many requests suspect it.

A stall of the router is not the worker's silence, so the timeout counts only time in which the router ran (`awake_for`,
after Lifeguard: Dadgar et al., 2018).
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
MIN_REST_S, LONGEST_REST_S = 0.05, 5.0
LACKING_LINE_S = 1.0
"""The minimum time between two log lines about a lack of connections."""


class _Watch:
    """The task that probes one worker, and an event that hurries it."""

    __slots__ = ("hurry", "task")

    def __init__(self, task: asyncio.Task[None], hurry: asyncio.Event) -> None:
        self.task = task
        self.hurry = hurry


class Prober:
    """One per fleet. Updates the fleet from probes and failures."""

    def __init__(self, fleet: Fleet, interval_s: float, log: Log, rng: Random) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._log = log
        self._rng = rng
        self._watches: dict[Worker, _Watch] = {}
        self._rests: dict[Worker, asyncio.TimerHandle] = {}
        self._unpooled = 0
        self._lacking_logged_at = -inf

    async def look_at_all(self) -> None:
        """Probe every worker once, before the first request."""
        await asyncio.gather(*(self.probe(worker) for worker in self._fleet.workers))

    def start(self) -> None:
        """Start probing, each worker first at a random moment of its interval."""
        for worker in self._fleet.workers:
            if worker not in self._watches:
                hurry = asyncio.Event()
                self._watches[worker] = _Watch(asyncio.create_task(self._watch(worker, hurry)), hurry)

    async def stop(self) -> None:
        """Stop probing and close idle connections."""
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
        """Replace the worker list: new workers are probed at once, removed ones until they hold nothing."""
        before = set(self._fleet.workers)
        self._fleet.reload(specs, connect)
        self.start()
        after = set(self._fleet.workers)
        for worker in after - before:
            self._hurry(worker)
            self._log.info("worker added", worker=worker.name, url=worker.url)
        for worker in before - after:
            self._log.info("worker removed", worker=worker.name, url=worker.url, inflight=worker.inflight)

    # ---- reports from requests

    def suspect(self, worker: Worker, error: Exception) -> None:
        """A connection to it was lost or refused: it gets nothing new until it answers a probe."""
        was = _state(worker)
        worker.health.suspect()
        self.failed(worker)
        self._report(worker, was, str(error))
        self._hurry(worker)

    def failed(self, worker: Worker) -> None:
        """It failed a request. Too many in a row eject it, if enough other workers are left."""
        was = _state(worker)
        if worker.health.failed() and not self._fleet.needs(worker):
            worker.health.eject(_now())
        self._report(worker, was, f"{worker.health.failures} requests in a row failed")

    def refused(self, worker: Worker, busy: Busy) -> None:
        """It has no room, or is draining: it gets nothing new for the delay it named, within bounds."""
        if busy.draining:
            was = _state(worker)
            worker.draining = True
            self._report(worker, was, "the worker reported it")
            return
        rest_s = min(max(busy.delay_ms / 1000, MIN_REST_S), LONGEST_REST_S)
        if (running := self._rests.pop(worker, None)) is not None:
            running.cancel()
        self._rests[worker] = asyncio.get_running_loop().call_later(rest_s, self._rested, worker)
        worker.resting = True
        self._fleet.looked(worker)

    def lacking(self, error: PoolFull) -> None:
        """This router has no connection or descriptor left; no worker is at fault."""
        now = _now()
        if now - self._lacking_logged_at >= LACKING_LINE_S:
            self._lacking_logged_at = now
            self._log.warning("this router cannot open connections to its workers", why=str(error))

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
            except Exception as error:  # a fault here must not stop the probes
                self._log.error("the worker probe failed", worker=worker.name, traceback=place_of(error))
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
            await asyncio.sleep(min(LOOK_AGAIN_S, self._interval_s))  # do not hammer a restarting worker
        except TimeoutError:
            pass

    def _hurry(self, worker: Worker) -> None:
        if (watch := self._watches.get(worker)) is not None:
            watch.hurry.set()

    async def probe(self, worker: Worker) -> None:
        """Probe once.

        One missed probe keeps new requests away. A second in a row, or a refused connection, means that the worker is
        dead: the requests that it has not begun to answer fail at once and are retried while there is time. A probe
        that this router cannot send, for lack of a descriptor or connection, does not count. Nor does one missed by a
        worker that holds requests and answers nothing else meanwhile.
        """
        held = worker.inflight
        try:
            async with awake_for(PROBE_TIMEOUT_S):
                seen = await worker.upstream.probe()
        except TimeoutError:
            if worker.spec.answers_when_busy or not (held or worker.inflight):
                self._missed(worker)
        except PoolFull as error:  # no connection left here: the worker was not probed
            self.lacking(error)
        except Exception as error:  # whatever it is, the next probe must come
            self._dead(worker, str(error) if isinstance(error, UpstreamError) else f"its probe raised {error!r}")
        else:
            self._saw(worker, seen)

    def _saw(self, worker: Worker, seen: Probe) -> None:
        was = _state(worker)
        worker.health.answered(_now(), needed=self._fleet.needs(worker))
        self._fleet.learn(worker, seen)
        self._report(worker, was, "")
        if self._fleet.unpooled > self._unpooled:
            self._log.warning("too many models: some are not served", left_out=self._fleet.unpooled)
        self._unpooled = self._fleet.unpooled

    def _missed(self, worker: Worker) -> None:
        was, why = _state(worker), f"no answer to a probe in {PROBE_TIMEOUT_S:g} s"
        if worker.health.missed():
            self._dead(worker, why)
        self._report(worker, was, why)

    def _dead(self, worker: Worker, why: str) -> None:
        was = _state(worker)
        worker.health.eject(_now())
        self._report(worker, was, why)
        worker.upstream.give_up(f"the worker is down: {why}")

    def _report(self, worker: Worker, was: str, why: str) -> None:
        """Update the fleet, and log a change of state."""
        state = _state(worker)
        self._fleet.looked(worker)
        if state != was:
            write = self._log.info if worker.healthy else self._log.warning
            write(
                "worker " + state, worker=worker.name, url=worker.url, slots=worker.own_slots, why=readable(why) or None
            )


@asynccontextmanager
async def awake_for(limit_s: float) -> AsyncIterator[None]:
    """`asyncio.timeout` over time in which this process ran: each of PIECES pieces counts once, however late it ends.

    After a one-second stall nine tenths of the time are left for the answer that has arrived, or is being made: a
    worker on the same machine stalled too. Never shorter than `limit_s`; longer by the router's own lateness.
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
