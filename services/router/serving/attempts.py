"""From a prompt to the first output of a worker: one try, and at most one more.

A retry is for bad luck, never for overload. It happens before the first output only, since what a client has read
cannot be taken back; once, with less context where there is any to leave out; within a budget of a tenth of the
traffic, so that a fleet that fails gets no more work than it was given (`core.retries`); and not at all when every
other worker has just refused. Which failure leads where is this table:

    the worker                          then
    was never reached                   another one; costs no retry, since nothing was tried
    refused (429, 503), or our pool of
    connections to it is full           another one that has not; if it is alone, itself again when it has rested, for
                                        the delay that it named (`prober`)
    cannot be connected to, since this
    process has no descriptor left      none: 503 at once. It is our lack, so it says nothing about the worker
    says that it failed                 another one
    was lost while it worked on it,
    or its engine was                   another one; a second one lost makes the request poison: it is tried no more

A worker therefore receives a request once, and all workers together receive it at most twice: the pool of connections
sends nothing again by itself once a byte was written (`runtime/keepalive.py`).
"""

from __future__ import annotations

import asyncio

from services.core.outcome import Outcome
from services.core.retries import RetryBudget
from services.router.deciding.dispatcher import Dispatcher
from services.router.observing.metrics import RouterMetrics
from services.router.observing.spans import attempt as attempt_span
from services.router.observing.spans import failed
from services.router.upstreams.call import Attempt, Begun, Busy, Call, EngineLost, Whole, WorkerFailed
from services.router.workers.prober import Prober
from services.router.workers.turn import Turn
from services.router.workers.worker import Worker
from services.runtime.errors import Refused
from services.runtime.upstream import ConnectionLost, NoDescriptors, PoolFull, UpstreamError

LEAST_SLACK_S = 0.02
"""A retry with less time than this left would only be late."""
MOST_KILLS = 2
NO_CONNECTION_REST_MS = 50.0


class Attempts:
    """Sends what has a place. Raises Refused, UpstreamFailed or BadInput; the place is its caller's to release."""

    def __init__(self, dispatcher: Dispatcher, prober: Prober, budget: RetryBudget, metrics: RouterMetrics) -> None:
        self._dispatcher = dispatcher
        self._prober = prober
        self._budget = budget
        self._metrics = metrics

    async def send(self, call: Call, turn: Turn) -> Whole | Begun:
        """The answer, or a stream with its first output."""
        loop = asyncio.get_running_loop()
        self._budget.sent(loop.time())
        while True:
            try:
                return await self._once(call, turn, loop.time())
            except UpstreamError as error:
                call = await self._again(call, turn, self._failed(turn, error), error)
            except Busy as busy:
                turn.overloaded = True
                self._prober.refused(_place_of(turn), busy)
                call = await self._again(call, turn, "refused", busy)

    async def _once(self, call: Call, turn: Turn, now: float) -> Whole | Begun:
        worker = turn.worker
        assert worker is not None, f"{turn!r} was sent without a place"
        remaining_ms = (call.deadline_at - now) * 1000
        if remaining_ms <= 0:
            raise Refused(Outcome.DEADLINE_EXPIRED, "the deadline passed before a worker was reached")
        turn.sent_at, turn.overloaded = now, False
        id = self._dispatcher.next_attempt(turn)
        attempt = Attempt(id, remaining_ms, () if turn.trace is None else attempt_span(turn, call, now))
        if not call.asked.stream:
            return await worker.upstream.whole(call, attempt)
        stream = await worker.upstream.open(call, attempt)
        try:
            return Begun(stream, await stream.next())
        except BaseException:
            stream.close()
            raise

    def broke(self, turn: Turn, error: UpstreamError) -> None:
        """Its stream was cut, or fell silent, after the first output: no retry, but the worker is looked at."""
        worker = turn.worker
        if worker is None:
            return
        if isinstance(error, WorkerFailed):
            self._prober.failed(worker)
        else:
            self._prober.suspect(worker, error)

    def _failed(self, turn: Turn, error: UpstreamError) -> str:
        """Why a try failed, for the metric.

        Raises Refused for a request that has cost its second worker, and for one that no socket is left for.
        """
        worker = _place_of(turn)
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
            turn.kills += 1
            if turn.kills >= MOST_KILLS:
                lost = f"{turn.kills} workers were lost while they worked on this request; it is not tried again"
                poison = Refused(Outcome.POISON, lost, reason="poison")
                poison.why = str(error)
                raise poison
        return "failed"

    async def _again(self, call: Call, turn: Turn, reason: str, failure: Exception) -> Call:
        """Another place, if there may be a retry. A worker that was never reached costs none."""
        now = asyncio.get_running_loop().time()
        if turn.trace is not None:
            failed(turn.trace, reason, now)
        free = reason == "unreachable"
        delay_s = failure.delay_ms / 1000 if isinstance(failure, Busy) else 0.0
        if not free and not self._may_retry(call, turn, now, failure, delay_s):
            raise self._give_up(call, turn, failure)
        assert free or not turn.retried, f"{turn!r} has had its retry"
        turn.retried = turn.retried or not free
        self._metrics.retry(reason)
        await self._dispatcher.another(turn)
        return call if free else call.reduced()

    def _may_retry(self, call: Call, turn: Turn, now: float, failure: Exception, delay_s: float) -> bool:
        if turn.retried or now + LEAST_SLACK_S > call.deadline_at:
            return False
        if isinstance(failure, Busy):
            left = _place_of(turn)
            others = [other for other in self._dispatcher.fleet.serving(turn.model) if other is not left]
            if all(other.resting for other in others) and (others or now + delay_s + LEAST_SLACK_S > call.deadline_at):
                return False
        return self._budget.try_retry(now)

    def _give_up(self, call: Call, turn: Turn, failure: Exception) -> Refused:
        refusing = self._dispatcher.refusing
        if isinstance(failure, Busy):
            refusal = "the workers refused, and so did the retry" if turn.retried else "the workers refused"
            return refusing.busy(refusal, failure.delay_ms)
        if isinstance(failure, PoolFull):
            return refusing.no_connection(str(failure))
        if not self._dispatcher.fleet.alive(call.model):
            return refusing.nobody_serves(call.model)
        public = failure.public if isinstance(failure, UpstreamError) else UpstreamError.public
        return refusing.failed(f"{'two workers' if turn.retried else 'the worker'} failed: {public}", str(failure))


def _place_of(turn: Turn) -> Worker:
    worker = turn.worker
    assert worker is not None, f"{turn!r} has no place"
    return worker
