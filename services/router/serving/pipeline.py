"""The life of a request, in the order it happens.

    who is asking, by when, for which model -> its rate -> a place in line, or a refusal at once
    -> passages, while it waits -> its turn -> the prompt, as large as its level allows -> a worker, and one retry
    -> the answer, whole or streamed -> settled, once, however it ends

Each step opens one file; a refusal leaves at the line where it is decided. Admission comes before everything that
costs: a refused request has been parsed and counted, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.core.ladder import LADDER
from services.core.outcome import Ending, Outcome
from services.router.asking.alarm import Alarm
from services.router.asking.asked import Asked
from services.router.asking.fields import judge
from services.router.asking.parsers import Parser
from services.router.asking.wishes import Wishes
from services.router.asking.wishes import read as read_wishes
from services.router.config import RouterSettings
from services.router.deciding.dispatcher import Dispatcher
from services.router.deciding.sizing import affinity, prompt_bytes
from services.router.observing import spans
from services.router.observing.journal import Journal
from services.router.observing.life import Life
from services.router.observing.metrics import RouterMetrics
from services.router.passages.retrieval import RetrievalClient
from services.router.serving.attempts import Attempts
from services.router.serving.context import Context, Prompt
from services.router.serving.orphans import Orphans
from services.router.serving.surfaces import surface_for
from services.router.serving.telling import Awake, tell_failure, tell_stream, tell_whole
from services.router.serving.usage import Usage, first_token_at, used
from services.router.tenancy.tenants import Tenant, Tenants
from services.router.upstreams.call import Begun, Call, Whole
from services.router.workers.cancels import Cancels
from services.router.workers.turn import Turn
from services.runtime.drain import Drain
from services.runtime.errors import NoSuchModel, Refused, WeirError
from services.runtime.framing import block
from services.runtime.http import Exchange, become_task
from services.runtime.tracing import Headers
from services.runtime.upstream import UpstreamError, readable

STILL_RUNNING = (Outcome.CLIENT_GONE, Outcome.DEADLINE_EXCEEDED, Outcome.DRAINING)
AT_THE_DOOR = (Ending.REJECTED, Ending.EVICTED)
LEVELS = tuple(block([(b"x-weir-level", b"%d" % level)]) for level in range(len(LADDER)))

Work = Callable[[Life], Awaitable[Refused | None]]


@dataclass(frozen=True)
class Pipeline:
    """Everything a request passes through. Built once, in `app`."""

    settings: RouterSettings
    tenants: Tenants
    dispatcher: Dispatcher
    attempts: Attempts
    cancels: Cancels
    orphans: Orphans
    context: Context
    retrieval: RetrievalClient
    metrics: RouterMetrics
    journal: Journal
    drain: Drain
    random: Callable[[], float]

    async def answer(self, exchange: Exchange, parse: Parser) -> None:
        """Serve one request for text, from beginning to end."""
        await self.live(exchange, lambda life: self._answer(exchange, parse, life))

    async def live(self, exchange: Exchange, work: Work) -> None:
        """Do the work of one request; end it once, however it ends; then tell the client if it failed.

        What it held is given back before the failure is told: a client that does not read delays nobody else.
        """
        now = asyncio.get_running_loop().time
        life = Life(began_at=now())
        failure: WeirError | None = None
        outcome = Outcome.INTERNAL
        try:
            life.tenant = self.tenants.by_header(exchange.header)  # a stranger's body is not worth reading
            failure = await work(life)
            outcome = Outcome.SERVED if failure is None else failure.outcome
        except TimeoutError:
            failure = _too_late(life)
            outcome = failure.outcome
        except WeirError as error:
            failure = error
            outcome = error.outcome
        except UpstreamError as error:  # after the first output: before it, there is the retry
            self._broke(life, error)
            failure = self.dispatcher.refusing.failed("the worker failed in the middle of its answer", str(error))
            outcome = failure.outcome
        except asyncio.CancelledError:  # by the client's leaving, by a limit, or by the end of the drain's grace
            if exchange.gone:
                outcome = Outcome.CLIENT_GONE
                raise
            failure = self._cancelled(life)
            outcome = failure.outcome
        finally:
            self._settle(exchange, life, outcome, failure, now())
        if failure is not None:
            await tell_failure(exchange, failure)

    def _cancelled(self, life: Life) -> WeirError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        alarm, turn = life.alarm, life.turn
        if turn is not None and turn.refusal is not None:  # it was told so in the same turn of the loop
            return turn.refusal
        if alarm is None or not alarm.rang:
            return self.dispatcher.refusing.leaving()
        if alarm.silence and alarm.limit < alarm.deadline:
            silent = UpstreamError(f"the worker said nothing for {self.settings.stream_silence_s:g} s")
            self._broke(life, silent)
            return self.dispatcher.refusing.failed(str(silent))
        return _too_late(life)

    def _broke(self, life: Life, error: UpstreamError) -> None:
        if life.turn is not None:
            self.attempts.broke(life.turn, error)

    async def _answer(self, exchange: Exchange, parse: Parser, life: Life) -> Refused | None:
        asked = parse(exchange.body)
        wishes = self.introduce(exchange, asked.tenant, life, stream=asked.stream)
        turn = self._turn(exchange, asked, wishes, life)
        refusal = self._admit(turn, life)
        if exchange.trace is not None:
            turn.trace = exchange.trace
            spans.admission(exchange.trace, turn, refusal, asyncio.get_running_loop().time())
        exchange.always = LEVELS[turn.level]
        if refusal is not None:
            return refusal
        self.metrics.admitted(life.label, turn.level)
        self.journal.admitted(exchange.id, life, turn.level)
        await become_task()
        if self.dispatcher.scheduler.policies.cancellation:
            life.alarm = Alarm(stop_when_gone(exchange), turn.deadline)
        else:
            life.alarm = self.orphans.watch(exchange, life, turn.deadline)
        await self._serve(exchange, asked, wishes, turn, life)
        return None

    # ---- at the door

    def introduce(self, exchange: Exchange, named: str | None, life: Life, *, stream: bool = False) -> Wishes:
        """Who is asking, and by when: a tenant with an SLO of its own can only shorten it.

        Raises BadInput, Unauthorized, or Refused while draining.
        """
        tenant = life.tenant or self.tenants.identify(exchange.header, named)
        life.tenant = tenant
        settings = self.settings
        default_ms = settings.default_slo_ms if tenant.slo_ms is None else tenant.slo_ms
        wishes = read_wishes(
            exchange.headers,
            default_ms=default_ms,
            max_ms=settings.max_deadline_ms,
            default_ttft_ms=settings.default_ttft_ms,
            stream=stream,
        )
        life.deadline_ms = wishes.deadline_ms if tenant.slo_ms is None else min(wishes.deadline_ms, tenant.slo_ms)
        if self.drain.draining:
            raise self.dispatcher.refusing.leaving()
        return wishes

    def _turn(self, exchange: Exchange, asked: Asked, wishes: Wishes, life: Life) -> Turn:
        """The request as the core weighs it: sizes estimated, limits in the loop's time."""
        tenant, now = _known(life), life.began_at
        model = self._model(asked.model, tenant)
        copies = judge(asked, self.dispatcher.fleet.allowed(model)) if asked.costly else 1
        size = prompt_bytes(asked.messages, asked.prompt) if asked.lookup is None else self.context.bytes(asked.lookup)
        turn = Turn(
            id=exchange.id,
            tenant=tenant.id,
            arrived_at=now,
            deadline=now + life.deadline_ms / 1000,
            prompt_tokens=self.context.sizes.tokens(model, size),
            max_tokens=asked.max_tokens * copies,
            bytes=len(exchange.body),
            max_level=len(self.dispatcher.scheduler.settings.ladder) - 1 if tenant.degrade else 0,
            may_clamp=tenant.degrade,
            model=model,
            prompt_bytes=size,
            copies=copies,
            affinity=affinity(asked.messages, asked.prompt),
        )
        if asked.lookup is not None:
            turn.context_tokens = self.context.expected_tokens(asked.lookup)
            turn.ready = False
        if wishes.max_wait_s is not None:
            turn.start_by = now + wishes.max_wait_s
        if asked.stream:
            turn.first_token_by = now + self._first_token_s(turn, wishes)
        if wishes.class_name is not None:
            turn.class_name = wishes.class_name
        return turn

    def _model(self, named: str | None, tenant: Tenant) -> str:
        """The model asked for, or the first that this tenant may use."""
        if named is None and tenant.models is not None:
            served = self.dispatcher.fleet.models
            named = next((model for model in served if tenant.allows(model)), min(tenant.models, default=None))
        model = self.dispatcher.resolve_model(named)
        if not tenant.allows(model):
            raise NoSuchModel(model)
        return model

    def _first_token_s(self, turn: Turn, wishes: Wishes) -> float:
        """By default a stream is to begin soon; but nobody is refused for a promise that it did not ask for."""
        if wishes.ttft_asked:
            return wishes.ttft_ms / 1000
        return max(wishes.ttft_ms / 1000, 2 * self.dispatcher.prefill_s(turn))

    def _admit(self, turn: Turn, life: Life) -> Refused | None:
        """Its rate, then its place; a request that is refused a place has used no rate."""
        tokens = float(turn.prompt_tokens + turn.context_tokens + turn.max_tokens)
        refusal = self.reserve(life, tokens)
        if refusal is not None:
            return refusal
        life.weighed, life.depth = turn, self.dispatcher.scheduler.usage.requests
        refusal = self.dispatcher.admit(life.began_at, turn)
        if refusal is None:
            life.turn = turn
            life.reserved_tokens = tokens
        elif (rate := _known(life).rate) is not None:
            rate.give_back(life.began_at, tokens)
        return refusal

    def reserve(self, life: Life, tokens: float) -> Refused | None:
        """One request of so many tokens from its tenant's rate; nothing for one that is paused."""
        tenant, now = _known(life), life.began_at
        if tenant.paused:
            return self.dispatcher.refusing.paused()
        rate = tenant.rate
        if rate is not None:
            wait_s = rate.try_take(now, tokens)
            if wait_s is not None:
                hint_ms = 1000 * rate.hint_s(now, wait_s, tokens, self.random)
                return Refused(
                    Outcome.RATE_LIMITED, f"this tenant's rate is used up for {wait_s:.2f} s",
                    reason="rate", scope="tenant", retry_hint_ms=hint_ms,
                )  # fmt: skip
        return None

    @asynccontextmanager
    async def forwarding(self, exchange: Exchange, life: Life, span: str, tokens: float) -> AsyncIterator[Headers]:
        """A request that another service answers: no slot is taken. Yields the headers of its trace.

        The request is identified, `tokens` are taken from its tenant's rate, and given back where that service refuses.
        Raises WeirError as `introduce`, Refused by the rate, TimeoutError at its deadline or after HTTP_TIMEOUT_S.
        """
        self.introduce(exchange, None, life)
        stop_when_gone(exchange)
        refusal = self.reserve(life, tokens)
        if refusal is not None:
            raise refusal
        limit_s = min(life.deadline_ms / 1000, self.settings.http_timeout_s)
        async with asyncio.timeout_at(life.began_at + limit_s):
            headers, _ = spans.calling(exchange.trace, span, asyncio.get_running_loop().time())
            try:
                yield headers
            except Refused:
                if (rate := _known(life).rate) is not None:
                    rate.give_back(life.began_at, tokens)
                raise

    # ---- on its way

    async def _serve(self, exchange: Exchange, asked: Asked, wishes: Wishes, turn: Turn, life: Life) -> None:
        now = asyncio.get_running_loop().time
        written = Prompt(asked.messages)
        if asked.lookup is not None:
            written = await self.context.fetch(asked.lookup, turn, life)
        await self.dispatcher.place(turn)
        life.dispatched_at = now()
        self.metrics.started(life.label, life.waited_s(), turn.predicted_wait_s)
        call = self._call(exchange, asked, written, turn, life)
        if call.asked.stream:
            await self._stream(exchange, call, wishes, turn, life)
            return
        answer = await self.attempts.send(call, turn)
        assert isinstance(answer, Whole)
        life.end = answer.end
        answered_at = now()
        if answered_at > turn.deadline:  # it came in the same turn of the loop as its alarm, and before it
            raise TimeoutError
        await tell_whole(exchange, surface_for(call.asked.format), call, answer, life, answered_at)

    async def _stream(self, exchange: Exchange, call: Call, wishes: Wishes, turn: Turn, life: Life) -> None:
        """The first output has a limit of its own, if the client named one; then each silence has."""
        loop, alarm, silence_s = asyncio.get_running_loop(), life.alarm, self.settings.stream_silence_s
        if wishes.ttft_asked and alarm is not None:
            alarm.set(turn.first_token_by)
        awake = Awake(exchange, life)
        try:
            begun = await self.attempts.send(call, turn)
        finally:
            awake.stop()
        assert isinstance(begun, Begun)
        try:
            life.first_at = loop.time()
            self.dispatcher.first_token(life.first_at, turn)
            self.metrics.first_token(life.label, life.first_at - life.began_at)
            if alarm is not None:
                alarm.set(life.first_at + silence_s, silence=True)
            await tell_stream(exchange, surface_for(call.asked.format), call, begun, life, silence_s)
        finally:
            begun.stream.close()

    def _call(self, exchange: Exchange, asked: Asked, written: Prompt, turn: Turn, life: Life) -> Call:
        granted = turn.granted_tokens if turn.copies == 1 else max(1, turn.granted_tokens // turn.copies)
        life.lowered = granted < asked.max_tokens
        work_until = turn.deadline if life.alarm is None else life.alarm.work_until
        return Call(exchange.id, turn.tenant, turn.model, granted, work_until, asked, *written)

    # ---- the end

    def _settle(self, exchange: Exchange, life: Life, outcome: Outcome, failure: WeirError | None, now: float) -> None:
        """Give everything back and count it: the only place where a request ends."""
        assert not life.settled, f"{exchange.id} has ended already"
        life.settled = True
        if life.alarm is not None:
            life.alarm.stop()
        label = life.label
        if life.unheard is None:
            self.metrics.ended(label, outcome, now - life.began_at)
        else:  # its client was told, and that was counted
            outcome = life.unheard
        exchange.log["outcome"] = outcome
        exchange.log["tenant"] = label
        if failure is not None and failure.why:
            exchange.log["why"] = readable(failure.why)
        if life.turn is not None:
            self._account(exchange, life, life.turn, outcome, now)
        elif outcome.ending in AT_THE_DOOR:
            self.metrics.refused(label, outcome)
        if exchange.trace is not None:
            spans.settled(exchange.trace, life, outcome, now)
        self.journal.ended(exchange.id, life, outcome, failure, now)

    def _account(self, exchange: Exchange, life: Life, turn: Turn, outcome: Outcome, now: float) -> None:
        """Its place goes to the next; what it used is charged; a worker that still works for nobody is told to stop."""
        worker = turn.worker
        if life.end is not None and not turn.first_token_at:
            self.dispatcher.first_token(first_token_at(life, life.end, now), turn)
        usage = used(turn, life, self.dispatcher.estimator(turn), now)
        if worker is not None:
            exchange.log["worker"] = life.worker = worker.name
            rang = life.alarm is not None and life.alarm.rang
            if turn.attempt_id and life.end is None and (rang or outcome in STILL_RUNNING):
                self.cancels.tell(worker, turn.attempt_id)
        whole = life.unheard is not None and life.end is not None  # it teaches what any answer does
        work = Outcome.SERVED if whole else outcome
        self.dispatcher.release(now, turn, work, usage.prompt_tokens, usage.completion_tokens, usage.pace_s)
        self._settle_rate(life, outcome, usage, now)
        if outcome is Outcome.SERVED:
            self._learn(life, turn, usage)
        elif life.dispatched_at and outcome.ending is Ending.FAILED:
            self.metrics.wasted(outcome, now - life.dispatched_at)

    def _settle_rate(self, life: Life, outcome: Outcome, usage: Usage, now: float) -> None:
        """Whoever was turned away from the line has used none of its rate; whoever left it has come."""
        rate = _known(life).rate
        if rate is None:
            return
        if life.dispatched_at or outcome is Outcome.CLIENT_GONE:
            rate.settle(now, life.reserved_tokens, usage.prompt_tokens + usage.completion_tokens)
        else:
            rate.give_back(now, life.reserved_tokens)

    def _learn(self, life: Life, turn: Turn, usage: Usage) -> None:
        weights = self.dispatcher.scheduler.settings.weights
        self.metrics.served(life.label, weights.cost(usage.prompt_tokens, usage.completion_tokens))
        if cuts := life.cuts():
            self.metrics.degraded(cuts)
        if life.found is None:
            self.context.sizes.counted(turn.model, turn.prompt_bytes, int(usage.prompt_tokens))


def stop_when_gone(exchange: Exchange) -> asyncio.Task[None]:
    """A client that leaves cancels its own request, streamed or not, wherever it stands. Its task."""
    task = exchange.task
    assert task is not None, "a handler that waits has become a task"
    exchange.on_gone(task.cancel)
    return task


def _known(life: Life) -> Tenant:
    tenant = life.tenant
    assert tenant is not None, "a request was weighed before it was introduced"
    return tenant


def _too_late(life: Life) -> Refused:
    turn = life.turn
    started = turn is None or life.dispatched_at
    outcome = Outcome.DEADLINE_EXCEEDED if started else Outcome.DEADLINE_EXPIRED
    where = "while the answer was being made" if started else "before a worker was reached"
    alarm = life.alarm
    if alarm is not None and not alarm.silence and alarm.limit < alarm.deadline:
        return Refused(
            outcome, f"the first token did not come in time: its limit passed {where}", reason="first_token",
            deadline_ms=life.deadline_ms,
        )  # fmt: skip
    return Refused(
        outcome, f"the deadline of {life.deadline_ms:g} ms passed {where}", reason="deadline",
        deadline_ms=life.deadline_ms,
    )  # fmt: skip
