"""One request through all its steps, in order.

    tenant, deadline, model -> rate limit -> a place in the queue, or a rejection at once
    -> passages, while queued -> a slot -> the prompt, as large as its level allows -> a worker, and one retry
    -> the answer, whole or streamed -> settled once, however it ends

`InferenceRequest` (`router/request.py`) goes through all of it. Admission comes before every cost: a rejected request
has been parsed and counted, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.contracts.generate import LONGEST_TOKENS
from services.core.ladder import LADDER
from services.core.outcome import Ending, Outcome
from services.router.config import RouterSettings
from services.router.deadlinetimer import DeadlineTimer
from services.router.deciding import earlyretry
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.sizing import prompt_bytes
from services.router.parsing.fields import asked_min_tokens, judge
from services.router.parsing.parsers import Parser
from services.router.parsing.slo import read as read_slo
from services.router.rag.retrieval import RetrievalClient
from services.router.request import InferenceRequest
from services.router.serving.attempts import Attempts
from services.router.serving.context import Context
from services.router.serving.detached import DetachedRequests
from services.router.serving.response import SseKeepAlive, send_failure, send_stream, send_whole
from services.router.serving.usage import ChargedTokens, first_token_at, used
from services.router.telemetry import spans
from services.router.telemetry.journal import Journal
from services.router.telemetry.metrics import RouterMetrics
from services.router.tenancy.rates import Rate
from services.router.tenancy.tenants import Tenant, Tenants
from services.router.upstreams.call import StartedStream, Whole
from services.router.workers.cancels import Cancels
from services.runtime.drain import Drain
from services.runtime.errors import NoSuchModel, Refused, WeirError
from services.runtime.framing import block
from services.runtime.http import Exchange, become_task
from services.runtime.upstream import UpstreamError, readable

STILL_RUNNING = (Outcome.CLIENT_GONE, Outcome.DEADLINE_EXCEEDED, Outcome.DRAINING)
REFUSED_ENDINGS = (Ending.REJECTED, Ending.EVICTED)
LEVELS = tuple(block([(b"x-weir-level", b"%d" % level)]) for level in range(len(LADDER)))
DEEPEST = len(LADDER) - 1

Work = Callable[[Exchange, InferenceRequest], Awaitable[Refused | None]]


@dataclass(frozen=True)
class Pipeline:
    """The parts that a request passes through. Built once, in `app`."""

    settings: RouterSettings
    tenants: Tenants
    dispatcher: Dispatcher
    attempts: Attempts
    cancels: Cancels
    detached: DetachedRequests
    context: Context
    retrieval: RetrievalClient
    metrics: RouterMetrics
    journal: Journal
    drain: Drain
    random: Callable[[], float]

    async def live(self, exchange: Exchange, work: Work) -> None:
        """Run `work`, settle the request once however it ends, and then send the failure, so that the slot is free
        first.
        """
        now = asyncio.get_running_loop().time
        request = InferenceRequest(exchange.id, arrived_at=exchange.began_at, trace=exchange.trace)
        failure: WeirError | None = None
        outcome = Outcome.INTERNAL
        try:
            account = self.tenants.by_header(exchange.header)  # with keys, an unknown client's body is not parsed
            if account is not None:
                request.account, request.tenant = account, account.id
            failure = await work(exchange, request)
            outcome = Outcome.SERVED if failure is None else failure.outcome
        except TimeoutError:
            failure = _too_late(request)
            outcome = failure.outcome
        except WeirError as raised:
            failure = raised
            outcome = raised.outcome
        except UpstreamError as error:  # after the first output; before it there is the retry
            self.attempts.broke(request, error)
            failure = self.dispatcher.refusing.failed("the worker failed before its answer was complete", str(error))
            outcome = failure.outcome
        except asyncio.CancelledError:  # the client disconnected, a limit fired, or the drain's grace ended
            if exchange.gone:
                outcome = Outcome.CLIENT_GONE
                raise
            failure = self._cancelled(request)
            outcome = failure.outcome
        finally:
            self._settle(exchange, request, outcome, failure, now())
        if failure is not None:
            await send_failure(exchange, failure)

    def _cancelled(self, request: InferenceRequest) -> WeirError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        timer = request.timer
        if request.refusal is not None:  # evicted in the same step of the loop
            return request.refusal
        if timer is None or not timer.fired:
            return self.dispatcher.refusing.leaving()
        if timer.silence and timer.limit < timer.deadline:
            silent = UpstreamError(f"the worker sent nothing for {self.settings.stream_silence_s:g} s")
            self.attempts.broke(request, silent)
            return self.dispatcher.refusing.failed(str(silent))
        return _too_late(request)

    async def answer(self, parse: Parser, exchange: Exchange, request: InferenceRequest) -> Refused | None:
        """The `work` of one text request: admission, then service. A refusal is returned."""
        early = earlyretry.repeated(exchange, request, self.dispatcher)
        if early is not None:
            self.metrics.early_retry(request.tenant)
            return early
        request.parsed = parsed = parse(exchange.body)
        tenant = self.introduce(exchange, request, parsed.tenant)
        self._weigh(exchange, request, tenant)
        refusal = self._admit(exchange, request, tenant)
        if request.trace is not None:
            spans.admission(request.trace, request, refusal, asyncio.get_running_loop().time())
        exchange.always = LEVELS[request.level]
        if refusal is not None:
            return refusal
        self.metrics.admitted(request.tenant, request.level)
        self.journal.admitted(request)
        await become_task()
        if self.dispatcher.scheduler.policies.cancellation:
            request.timer = DeadlineTimer(stop_when_gone(exchange), request.deadline)
        else:
            request.timer = self.detached.watch(exchange, request)
        await self._serve(exchange, request)
        return None

    # ---- admission

    def introduce(self, exchange: Exchange, request: InferenceRequest, named: str | None) -> Tenant:
        """Identify the tenant, which the body names `named`, and set the deadline. Raises BadInput, Unauthorized or
        Refused.
        """
        tenant = request.account
        if tenant is None:
            request.account = tenant = self.tenants.identify(exchange.header, named)
            request.tenant = tenant.id
        settings = self.settings
        request.slo = slo = read_slo(
            exchange.headers, default_ms=settings.default_slo_ms, max_ms=settings.max_deadline_ms,
            default_ttft_ms=settings.default_ttft_ms, stream=request.parsed.stream, tenant_ms=tenant.slo_ms,
        )  # fmt: skip
        request.deadline = request.arrived_at + slo.deadline_ms / 1000
        if self.drain.draining:
            raise self.dispatcher.refusing.leaving()
        return tenant

    def _weigh(self, exchange: Exchange, request: InferenceRequest, tenant: Tenant) -> None:
        """Set what the scheduler decides by: the estimated sizes, and the limits in the loop's time."""
        parsed, slo = request.parsed, request.slo
        query = parsed.retrieval
        request.model = model = self._model(parsed.model, tenant)
        size = prompt_bytes(parsed.messages, parsed.prompt) if query is None else self.context.bytes(query)
        request.prompt_bytes = size
        request.prompt_tokens = self.context.sizes.tokens(model, size)
        if parsed.max_tokens is None:
            self._limit(request)
        else:
            request.max_tokens = parsed.max_tokens
        if parsed.special is not None:
            self._price(request, model, size)
        request.bytes = len(exchange.body)
        if tenant.degrade:
            request.max_level = DEEPEST
            request.may_clamp = True
        if query is not None:
            request.context_tokens = self.context.expected_tokens(query)
            request.ready = False
        if slo.max_wait_s is not None:
            request.start_by = request.arrived_at + slo.max_wait_s
        if parsed.stream:
            request.first_token_by = request.arrived_at + self._first_token_s(request)
        if slo.class_name is not None:
            request.class_name = slo.class_name

    def _limit(self, request: InferenceRequest) -> None:
        """Set the limit of an answer whose client names none: the operator's, else none."""
        if self.settings.default_max_tokens:
            request.max_tokens, request.limited_by_default = self.settings.default_max_tokens, True
        else:
            request.open_ended = True
            request.max_tokens = self.dispatcher.likely_tokens(request)

    def _price(self, request: InferenceRequest, model: str, size: int) -> None:
        """Add what the text of the prompt, of `size` bytes, and one answer to it do not cost. Raises BadInput."""
        parsed, longest = request.parsed, LONGEST_TOKENS if request.open_ended else request.max_tokens
        price = judge(parsed, self.dispatcher.fleet.servers(model), longest)
        if request.open_ended:
            request.max_tokens = max(request.max_tokens, asked_min_tokens(parsed.body))
        size += price.bytes
        request.copies = price.copies
        request.max_tokens *= price.copies
        request.prompt_bytes = size if price.exact else 0
        request.prompt_tokens = self.context.sizes.tokens(model, size) * price.times + price.tokens

    def _model(self, named: str | None, tenant: Tenant) -> str:
        """The named model, or the first that this tenant may use. Raises NoSuchModel."""
        if named is None and tenant.models is not None:
            served = self.dispatcher.fleet.models
            named = next((model for model in served if tenant.allows(model)), min(tenant.models, default=None))
        model = self.dispatcher.resolve_model(named)
        if not tenant.allows(model):
            raise NoSuchModel(model)
        return model

    def _first_token_s(self, request: InferenceRequest) -> float:
        """The limit for the first token, in seconds. A default limit never causes a rejection: it covers prefill."""
        slo = request.slo
        if slo.ttft_asked:
            return slo.ttft_ms / 1000
        return max(slo.ttft_ms / 1000, 2 * self.dispatcher.prefill_s(request))

    def _admit(self, exchange: Exchange, request: InferenceRequest, tenant: Tenant) -> Refused | None:
        """Take from the rate, then ask the scheduler; a rejected request gets its rate back.

        The time is when the request was read. It may have arrived earlier, but the scheduler's time does not run back.
        """
        now = exchange.read_at
        tokens = float(request.prompt_tokens + request.context_tokens + request.max_tokens)
        refusal = self.reserve(now, tenant, tokens)
        if refusal is not None:
            earlyretry.remember(exchange, request, refusal, tokens)
            return refusal
        request.queue_depth = self.dispatcher.scheduler.usage.requests
        refusal = self.dispatcher.admit(now, request)
        if refusal is None:
            request.admitted = True
            request.reserved_tokens = tokens
            return None
        if tenant.rate is not None:
            tenant.rate.give_back(now, tokens)
        earlyretry.remember(exchange, request, refusal, 0.0)
        return refusal

    def reserve(self, now: float, tenant: Tenant, tokens: float) -> Refused | None:
        """Take one request with `tokens` from the tenant's rate; a paused tenant is rejected."""
        if tenant.paused:
            return self.dispatcher.refusing.paused()
        rate = tenant.rate
        if rate is not None:
            wait_s = rate.try_take(now, tokens)
            if wait_s is not None:
                hint_ms = 1000 * rate.hint_s(now, wait_s, tokens, self.random)
                return Refused(
                    Outcome.RATE_LIMITED, f"this tenant's rate limit is exhausted for {wait_s:.2f} s",
                    reason="rate", scope="tenant", retry_hint_ms=hint_ms,
                )  # fmt: skip
        return None

    # ---- service

    async def _serve(self, exchange: Exchange, request: InferenceRequest) -> None:
        now = asyncio.get_running_loop().time
        query = request.parsed.retrieval
        if query is not None:
            await self.context.fetch(query, request)
        if request.worker is None:
            await self.dispatcher.wait_for_slot(request)
        request.dispatched_at = now()
        self.metrics.started(request.tenant, request.waited_s, request.predicted_wait_s)
        if request.parsed.stream:
            await self._stream(exchange, request)
            return
        answer = await self.attempts.send(request)
        assert isinstance(answer, Whole)
        request.end = answer.end
        answered_at = now()
        if answered_at > request.deadline:  # it came in the same step of the loop as the timer
            raise TimeoutError
        await send_whole(exchange, request, answer, answered_at)

    async def _stream(self, exchange: Exchange, request: InferenceRequest) -> None:
        """The first output has its own limit if the client named one; then each silence has."""
        loop, timer, silence_s = asyncio.get_running_loop(), request.timer, self.settings.stream_silence_s
        if request.slo.ttft_asked and timer is not None:
            timer.set(request.first_token_by)
        keep_alive = SseKeepAlive(exchange, request)
        try:
            started = await self.attempts.send(request)
        finally:
            keep_alive.stop()
        assert isinstance(started, StartedStream)
        try:
            first_at = loop.time()
            self.dispatcher.first_token(first_at, request)
            self.metrics.first_token(request.tenant, first_at - request.arrived_at)
            if timer is not None:
                timer.set(first_at + silence_s, silence=True)
            await send_stream(exchange, request, started, silence_s)
        finally:
            started.stream.close()

    # ---- the end

    def _settle(
        self, exchange: Exchange, request: InferenceRequest, outcome: Outcome, failure: WeirError | None, now: float
    ) -> None:
        """Free everything and count the request: the only place where a request ends."""
        assert request.outcome is None, f"{exchange.id} has ended already"
        if request.timer is not None:
            request.timer.stop()
        tenant = request.tenant
        if request.client_outcome is None:
            self.metrics.ended(tenant, outcome, now - request.arrived_at)
        else:  # the client got its refusal, which was counted then
            outcome = request.client_outcome
        request.outcome = exchange.log["outcome"] = outcome
        exchange.log["tenant"] = tenant
        if failure is not None and failure.why:
            exchange.log["why"] = readable(failure.why)
        if request.admitted:
            self._account(exchange, request, outcome, now)
        elif outcome.ending in REFUSED_ENDINGS:
            self.metrics.refused(tenant, outcome)
        if request.trace is not None:
            spans.settled(request.trace, request, outcome, now)
            request.trace = None  # the record is kept for a while, the trace is not
        self.journal.ended(request, failure, now)

    def _account(self, exchange: Exchange, request: InferenceRequest, outcome: Outcome, now: float) -> None:
        """Free the slot, charge what was used, and cancel the work if the worker still runs."""
        worker = request.worker
        end, timer = request.end, request.timer
        if end is not None and not request.first_token_at:
            self.dispatcher.first_token(first_token_at(request, end, now), request)
        usage = used(request, self.dispatcher.estimator, now)
        if worker is not None:
            exchange.log["worker"] = request.last_worker = worker.name
            fired = timer is not None and timer.fired
            if end is None and request.attempt_id and (fired or outcome in STILL_RUNNING):
                self.cancels.send(worker, request.attempt_id)
        whole = end is not None and request.client_outcome is not None  # a sample as any other
        work = Outcome.SERVED if whole else outcome
        self.dispatcher.release(now, request, work, usage.prompt_tokens, usage.completion_tokens, usage.pace_s)
        rate = _known(request).rate
        if rate is not None:
            _settle_rate(rate, request, outcome, usage, now)
        if outcome is Outcome.SERVED:
            self._learn(request, usage)
        elif request.dispatched_at and outcome.ending is Ending.FAILED:
            self.metrics.wasted(outcome, now - request.dispatched_at)

    def _learn(self, request: InferenceRequest, usage: ChargedTokens) -> None:
        self.metrics.served(request.tenant, request.charge_tokens)  # as settled
        if cuts := request.cuts:
            self.metrics.degraded(cuts)
        if request.found is None:
            self.context.sizes.counted(request.model, request.prompt_bytes, int(usage.prompt_tokens))


def stop_when_gone(exchange: Exchange) -> asyncio.Task[None]:
    """Cancel the request's task if the client disconnects; returns the task."""
    task = exchange.task
    assert task is not None, "a handler that waits has become a task"
    exchange.on_gone(task.cancel)
    return task


def _settle_rate(rate: Rate, request: InferenceRequest, outcome: Outcome, usage: ChargedTokens, now: float) -> None:
    """A request evicted from the queue has used none of its rate; one whose client disconnected has."""
    if request.dispatched_at or outcome is Outcome.CLIENT_GONE:
        rate.settle(now, request.reserved_tokens, usage.prompt_tokens + usage.completion_tokens)
    else:
        rate.give_back(now, request.reserved_tokens)


def _known(request: InferenceRequest) -> Tenant:
    tenant = request.account
    assert tenant is not None, "a request was weighed before it was introduced"
    return tenant


def _too_late(request: InferenceRequest) -> Refused:
    started = not request.admitted or request.dispatched_at
    outcome = Outcome.DEADLINE_EXCEEDED if started else Outcome.DEADLINE_EXPIRED
    where = "while the answer was being generated" if started else "before a worker was reached"
    timer = request.timer
    if timer is not None and not timer.silence and timer.limit < timer.deadline:
        what, reason = "the first token did not arrive in time: its limit", "first_token"
    else:
        what, reason = f"the deadline of {request.deadline_ms:g} ms", "deadline"
    return Refused(outcome, f"{what} passed {where}", reason=reason, deadline_ms=request.deadline_ms)
