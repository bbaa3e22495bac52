"""The workers and the ledger of what they hold.

The router's own synchronous count is the authority on what is in flight: polled metrics lag, and every router that
trusted them overshot or stood still (vLLM #49538, llm-d #2100). A probe only tells how many places a worker has and
whether it lives. A request needs a place; choosing one and taking it is a single step on one event-loop turn.

Among workers with a free place the least loaded in proportion wins, the longest unused on a tie.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from services.router.call import Probe, Upstream
from services.router.upstreams.openai import OpenAIUpstream
from services.router.upstreams.weir import WeirUpstream
from services.router.workersfile import WorkerSpec
from services.runtime.keepalive import Pool, UpstreamError
from services.runtime.log import Log

PROBE_TIMEOUT_S = 1.0
LOOK_AGAIN_S = 0.1
SPARE_CONNECTIONS = 8  # for probes and cancels, beside one for each place


class Worker:
    """One worker: how to speak to it, what it announced, what it holds."""

    def __init__(self, spec: WorkerSpec, upstream: Upstream) -> None:
        self.name = spec.name
        self.url = spec.url
        self.kind = spec.kind
        self.upstream = upstream
        self.models: tuple[str, ...] = tuple(spec.models)
        self.slots = spec.slots if isinstance(spec.slots, int) else 0
        self.places = self.slots + spec.lookahead
        self.inflight = 0
        self.healthy = False
        self.draining = False
        self.last_used = 0
        self.missed_probes = 0

    def serves(self, model: str) -> bool:
        """Whether it announced this model."""
        return model in self.models

    def __repr__(self) -> str:
        state = "draining" if self.draining else "up" if self.healthy else "down"
        return f"<Worker {self.name} {state} {self.inflight}/{self.places}>"


class WorkerPool:
    """All workers. Synchronous but for `waiting`, which an admitted request's retry may use."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers
        self._uses = 0
        self.models: list[str] = []
        self.slots = 0
        self.learn()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def learn(self) -> None:
        """Every model served, in the order of the worker list, the first being the default; and the slots alive."""
        self.slots = sum(worker.slots for worker in self.workers if worker.healthy)
        self.models = list(dict.fromkeys(model for worker in self.workers for model in worker.models))

    def alive(self, model: str) -> list[Worker]:
        """The workers that could serve it now or soon."""
        return [worker for worker in self.workers if worker.healthy and not worker.draining and worker.serves(model)]

    def take(self, model: str, excluding: Worker | None = None) -> Worker | None:
        """Choose a worker with a free place and take the place, in one step; None when there is none."""
        best: Worker | None = None
        best_load = (0.0, 0)
        for worker in self.workers:
            if not worker.healthy or worker.draining or worker is excluding or worker.inflight >= worker.places:
                continue
            if model not in worker.models:
                continue
            load = (worker.inflight / worker.places, worker.last_used)
            if best is None or load < best_load:
                best, best_load = worker, load
        if best is not None:
            self._uses += 1
            best.inflight += 1
            best.last_used = self._uses
        return best

    def releaser(self, worker: Worker) -> Callable[[], None]:
        """What gives this place back, once; hang it on the ticket."""

        def give_back() -> None:
            worker.inflight -= 1
            self.wake_one()

        return give_back

    async def waiting(self, deadline_at: float) -> None:
        """Until a place may have become free, first come first served. Raises TimeoutError at the deadline.

        Only requests that hold a place under MAX_INFLIGHT wait here, so MAX_INFLIGHT bounds the waiters too.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            async with asyncio.timeout_at(deadline_at):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.wake_one()  # the turn came too late for us: pass it on
            raise
        finally:
            if turn in self._waiters:
                self._waiters.remove(turn)

    def wake_one(self) -> None:
        """A place may be free: wake the first in line."""
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def wake_all(self) -> None:
        """The set of workers has changed: everyone looks again."""
        for turn in self._waiters:
            if not turn.done():
                turn.set_result(None)
        self._waiters.clear()


class Prober:
    """Looks at every worker at a steady pace, and at once when one is suspected."""

    def __init__(self, pool: WorkerPool, interval_s: float, log: Log) -> None:
        self._pool = pool
        self._interval_s = interval_s
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []
        self._nudges = {worker.name: asyncio.Event() for worker in pool.workers}

    def start(self) -> None:
        """Begin to look."""
        self._tasks = [asyncio.create_task(self._watch(worker)) for worker in self._pool.workers]

    async def stop(self) -> None:
        """Stop looking and close idle connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._pool.workers:
            worker.upstream.close()

    def suspect(self, worker: Worker, error: Exception) -> None:
        """A request failed on it: it gets no further one until it has answered a probe."""
        self._mark(worker, None, str(error))
        self._nudges[worker.name].set()

    async def _watch(self, worker: Worker) -> None:
        nudge = self._nudges[worker.name]
        while True:
            await self.probe(worker)
            nudge.clear()
            pause_s = min(LOOK_AGAIN_S, self._interval_s) if worker.missed_probes == 1 else self._interval_s
            try:
                async with asyncio.timeout(pause_s):
                    await nudge.wait()
                await asyncio.sleep(min(LOOK_AGAIN_S, self._interval_s))  # a restarting worker must not be hammered
            except TimeoutError:
                pass

    async def probe(self, worker: Worker) -> None:
        """Look once, and believe what is seen.

        One missed probe keeps new requests away; a second one in a row, or a refused connection, means that it is
        dead: what it has not begun to answer fails at once, and has its retry while there is time.
        """
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                seen = await worker.upstream.probe()
        except TimeoutError:
            worker.missed_probes += 1
            self._mark(worker, None, f"no answer to a probe in {PROBE_TIMEOUT_S:g} s")
            if worker.missed_probes > 1:
                worker.upstream.give_up("the worker answers no probe")
        except UpstreamError as error:
            self._mark(worker, None, str(error))
            worker.upstream.give_up(f"the worker is gone: {error}")
        else:
            worker.missed_probes = 0
            self._mark(worker, seen, "")

    def _mark(self, worker: Worker, seen: Probe | None, why: str) -> None:
        was = (worker.healthy, worker.draining)
        worker.healthy = seen is not None
        if seen is not None:
            worker.slots, worker.places, worker.models = seen.slots, seen.places, seen.models
            worker.draining = seen.draining
        self._pool.learn()
        if (worker.healthy, worker.draining) == was:
            return
        write = self._log.info if worker.healthy else self._log.warning
        state = "draining" if worker.draining else "up" if worker.healthy else "down"
        write("worker " + state, worker=worker.name, url=worker.url, slots=worker.slots, why=why or None)
        self._pool.wake_all()


def connect(spec: WorkerSpec, max_inflight: int) -> Worker:
    """A worker from its entry in the list."""
    pool = Pool(spec.url, max_connections=max_inflight + SPARE_CONNECTIONS)
    if spec.kind == "weir":
        return Worker(spec, WeirUpstream(pool))
    slots = spec.slots if isinstance(spec.slots, int) else 1
    return Worker(spec, OpenAIUpstream(pool, slots, spec.lookahead, tuple(spec.models), spec.api_key()))
