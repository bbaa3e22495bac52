"""From a prompt to the first output of a worker: one attempt, and at most one retry (docs/decisions/022).

    the worker                          then
    was never reached                   another one; costs no retry, since nothing was tried
    refused (429, 503), or the pool of
    connections to it is full           another one that has not refused; the only worker again, after its rest
    cannot be connected to, since this
    process has no descriptor left      none: 503 at once, which says nothing about the worker
    answered with an error              another one
    was lost while it worked on it,
    or its engine was                   another one; at the second loss the request is poison and not retried

So a worker receives a request once, and all workers together at most twice: the connection pool sends nothing again
once a byte was written (`runtime/keepalive.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from services.core.outcome import Outcome
from services.core.retries import RetryBudget
from services.router.deciding.dispatcher import Dispatcher
from services.router.request import InferenceRequest
from services.router.telemetry.metrics import RouterMetrics
from services.router.telemetry.spans import attempt as attempt_span
from services.router.telemetry.spans import failed
from services.router.upstreams.call import Attempt, Busy, EngineLost, StartedStream, Whole, WorkerFailed
from services.router.workers.prober import Prober
from services.router.workers.worker import Worker
from services.runtime.errors import Refused
from services.runtime.upstream import ConnectionLost, NoDescriptors, PoolFull, UpstreamError

MIN_SLACK_S = 0.02
"""A retry with less time than this left would be late."""
MAX_WORKER_CRASHES = 2
NO_CONNECTION_REST_MS = 50.0


class Attempts:
    """Sends requests that hold a slot. Raises Refused, UpstreamFailed or BadInput; the caller releases the slot."""

    def __init__(self, dispatcher: Dispatcher, prober: Prober, budget: RetryBudget, metrics: RouterMetrics) -> None:
        self._dispatcher = dispatcher
        self._prober = prober
        self._budget = budget
        self._metrics = metrics

    async def send(self, request: InferenceRequest) -> Whole | StartedStream:
        """The whole answer, or a stream with its first output."""
        loop = asyncio.get_running_loop()
        self._budget.sent(loop.time())
        while True:
            try:
                return await self._attempt(request, loop.time())
            except UpstreamError as error:
                free = self._take_retry(request, self._failed(request, error), error)
            except Busy as busy:
                request.overloaded = True
                self._prober.refused(_place_of(request), busy)
                free = self._take_retry(request, "refused", busy)
            await self._dispatcher.requeue_for_retry(request)
            if not free:
                request.halve_context()

    def _attempt(self, request: InferenceRequest, now: float) -> Awaitable[Whole | StartedStream]:
        """One attempt, to be awaited: a frame less between the client and the worker."""
        worker = request.worker
        assert worker is not None, f"{request!r} was sent without a place"
        remaining_ms = (request.work_until - now) * 1000
        if remaining_ms <= 0:
            raise Refused(Outcome.DEADLINE_EXPIRED, "the deadline passed before a worker was reached")
        request.sent_at, request.overloaded = now, False
        id = self._dispatcher.next_attempt(request)
        trace = () if request.trace is None else attempt_span(request, now)
        attempt = Attempt(id, remaining_ms, trace, None if worker.lease is None else worker.lease.ask(now))
        if not request.parsed.stream:
            return worker.upstream.whole(request, attempt)
        return _started(worker, request, attempt)

    def broke(self, request: InferenceRequest, error: UpstreamError) -> None:
        """The stream was cut or went silent after the first output: no retry, but the worker is probed."""
        worker = request.worker
        if worker is None:
            return
        if isinstance(error, WorkerFailed):
            self._prober.failed(worker)
        else:
            self._prober.suspect(worker, error)

    def _failed(self, request: InferenceRequest, error: UpstreamError) -> str:
        """Why an attempt failed, for the metric. Raises Refused at the second lost worker, or without a descriptor."""
        worker = _place_of(request)
        if isinstance(error, NoDescriptors):
            self._prober.lacking(error)
            raise self._dispatcher.refusing.no_connection(str(error))
        if isinstance(error, PoolFull):
            self._prober.refused(worker, Busy(NO_CONNECTION_REST_MS))
            return "refused"
        if isinstance(error, WorkerFailed):
            self._prober.failed(worker)
        else:
            self._prober.suspect(worker, error)
            if not error.sent:
                return "unreachable"
        if isinstance(error, (ConnectionLost, EngineLost)):
            request.worker_crashes = crashes = request.worker_crashes + 1
            if crashes >= MAX_WORKER_CRASHES:
                lost = f"{crashes} workers failed while they processed this request; it is not retried"
                poison = Refused(Outcome.POISON, lost, reason="poison")
                poison.why = str(error)
                raise poison
        return "failed"

    def _take_retry(self, request: InferenceRequest, reason: str, failure: Exception) -> bool:
        """Take the retry, or raise the refusal. Returns whether it was free, since the worker was never reached."""
        now = asyncio.get_running_loop().time()
        if request.trace is not None:
            failed(request.trace, reason, now)
        free = reason == "unreachable"
        delay_s = failure.delay_ms / 1000 if isinstance(failure, Busy) else 0.0
        if not free and not self._may_retry(request, now, failure, delay_s):
            raise self._give_up(request, failure)
        assert free or not request.retried, f"{request!r} has had its retry"
        request.retried = request.retried or not free
        self._metrics.retry(reason)
        return free

    def _may_retry(self, request: InferenceRequest, now: float, failure: Exception, delay_s: float) -> bool:
        due = request.work_until
        if request.retried or now + MIN_SLACK_S > due:
            return False
        if isinstance(failure, Busy):
            refused = _place_of(request)
            others = [other for other in self._dispatcher.fleet.serving(request.model) if other is not refused]
            if all(other.resting for other in others) and (others or now + delay_s + MIN_SLACK_S > due):
                return False
        return self._budget.try_retry(now)

    def _give_up(self, request: InferenceRequest, failure: Exception) -> Refused:
        refusing = self._dispatcher.refusing
        if isinstance(failure, Busy):
            refusal = (
                "the workers rejected the request and its retry"
                if request.retried
                else "the workers rejected the request"
            )
            return refusing.busy(refusal, failure.delay_ms)
        if isinstance(failure, PoolFull):
            return refusing.no_connection(str(failure))
        if not self._dispatcher.fleet.alive(request.model):
            return refusing.no_live_worker(request.model)
        public = failure.public if isinstance(failure, UpstreamError) else UpstreamError.public
        return refusing.failed(f"{'two workers' if request.retried else 'the worker'} failed: {public}", str(failure))


async def _started(worker: Worker, request: InferenceRequest, attempt: Attempt) -> StartedStream:
    """A stream with its first output."""
    stream = await worker.upstream.open(request, attempt)
    try:
        return StartedStream(stream, await stream.next())
    except BaseException:
        stream.close()
        raise


def _place_of(request: InferenceRequest) -> Worker:
    worker = request.worker
    assert worker is not None, f"{request!r} has no place"
    return worker
