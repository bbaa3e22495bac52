"""The life of a request, in the order it happens.

    who is asking, and by when -> a place, or a refusal at once -> passages, within their budget -> the prompt
    -> a worker, and one retry -> the answer, whole or streamed -> settled, once, however it ends

Each step opens one file; a refusal leaves at the line where it is decided. Admission comes before everything that
costs: a refused request has been parsed and counted, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.contracts.generate import Message
from services.contracts.search import Passage
from services.core.outcome import Ending, Outcome
from services.core.ticket import Ticket
from services.router import prompt
from services.router.asked import Asked, Lookup, Parser
from services.router.call import Begun, Call, Whole
from services.router.config import RouterSettings
from services.router.deadlines import deadline_ms
from services.router.dispatcher import Dispatcher, Place
from services.router.life import Life
from services.router.metrics import RouterMetrics
from services.router.retrieval import Found, RetrievalClient
from services.router.surfaces import Surface, passed_through, surface_for
from services.router.tenants import LabTenants
from services.runtime.clock import unix_seconds
from services.runtime.drain import Drain
from services.runtime.errors import Refused, UpstreamFailed, WeirError, problem
from services.runtime.http import Exchange, become_task
from services.runtime.keepalive import UpstreamError

ANSWER_RESERVE_MS = 50.0  # of the deadline, which retrieval may not take

STILL_RUNNING = (Outcome.CLIENT_GONE, Outcome.DEADLINE_EXCEEDED, Outcome.DRAINING)

Work = Callable[[Life, Ticket], Awaitable[Refused | None]]


@dataclass(frozen=True)
class Pipeline:
    """Everything a request passes through. Built once, in `app`."""

    settings: RouterSettings
    tenants: LabTenants
    dispatcher: Dispatcher
    retrieval: RetrievalClient
    metrics: RouterMetrics
    drain: Drain

    async def answer(self, exchange: Exchange, parse: Parser) -> None:
        """Serve one request for text, from beginning to end."""
        await self.live(exchange, lambda life, ticket: self._answer(exchange, parse, life, ticket))

    async def live(self, exchange: Exchange, work: Work) -> None:
        """Do the work of one request; end it once, however it ends; then tell the client if it failed.

        What it held is given back before the failure is told: a client that does not read delays nobody else.
        """
        now = asyncio.get_running_loop().time
        life = Life(began_at=now())
        ticket = Ticket(exchange.id, life.began_at)
        failure: WeirError | None = None
        outcome = Outcome.INTERNAL
        try:
            failure = await work(life, ticket)
            outcome = Outcome.SERVED if failure is None else failure.outcome
        except TimeoutError:
            failure = _too_late(life)
            outcome = failure.outcome
        except WeirError as error:
            failure = error
            outcome = error.outcome
        except UpstreamError as error:  # after the first output: before it, the dispatcher retries
            failure = UpstreamFailed(f"the worker's answer was cut: {error}")
            outcome = failure.outcome
        except asyncio.CancelledError:  # by the client's leaving, or by the end of the drain's grace
            outcome = Outcome.CLIENT_GONE if exchange.gone else Outcome.DRAINING
            if exchange.gone:
                raise
            failure = Refused(Outcome.DRAINING, "this router is shutting down", reason="draining")
        finally:
            self._settle(exchange, ticket, life, outcome, now())
        if failure is not None:
            await self._tell_failure(exchange, failure)

    async def _answer(self, exchange: Exchange, parse: Parser, life: Life, ticket: Ticket) -> Refused | None:
        asked = parse(exchange.body)
        deadline_at = self.introduce(exchange, asked.tenant, life)
        model = self.dispatcher.resolve_model(asked.model)
        place = self.dispatcher.admit(ticket, model)
        if isinstance(place, Refused):
            self.metrics.refused(life.tenant, place.outcome)
            return place
        self.metrics.admitted(life.tenant)
        life.place = place
        await become_task()
        stop_when_gone(exchange)
        async with asyncio.timeout_at(deadline_at):
            await self._serve(exchange, asked, model, place, life, deadline_at)
        return None

    def introduce(self, exchange: Exchange, named: str | None, life: Life) -> float:
        """Who is asking, and by when (loop time). Raises BadInput, or Refused while draining."""
        life.tenant = self.tenants.identify(exchange.header(b"x-tenant"), named)
        settings = self.settings
        life.deadline_ms = deadline_ms(exchange.headers, settings.default_slo_ms, settings.max_deadline_ms)
        if self.drain.draining:
            raise Refused(Outcome.DRAINING, "this router is shutting down", reason="draining", retry_hint_ms=1000)
        return life.began_at + life.deadline_ms / 1000

    async def _serve(
        self, exchange: Exchange, asked: Asked, model: str, place: Place, life: Life, deadline_at: float
    ) -> None:
        now = asyncio.get_running_loop().time
        if asked.lookup is not None:
            life.found = await self._look_up(asked.lookup, life, deadline_at)
        call = self._call(exchange, asked, model, life, deadline_at)
        life.dispatched_at = now()
        result = await self.dispatcher.send(call, place)
        surface = surface_for(call.format)
        if isinstance(result, Whole):
            life.end = result.end
            await self._tell_whole(exchange, surface, call, result, life)
        else:
            try:
                await self._tell_stream(exchange, surface, call, result, life)
            finally:
                result.stream.close()

    async def _look_up(self, lookup: Lookup, life: Life, deadline_at: float) -> Found:
        """Passages within the budget or what remains, whichever is less. What is missing is disclosed."""
        remaining_ms = (deadline_at - asyncio.get_running_loop().time()) * 1000 - ANSWER_RESERVE_MS
        budget_ms = min(self.settings.retrieval_budget_ms, max(remaining_ms, 1.0))
        ttl_s = self.settings.cache_ttl_s if lookup.cache_ttl_s is None else lookup.cache_ttl_s
        found = await self.retrieval.retrieve(lookup.query, life.tenant, lookup.top_k, ttl_s, budget_ms)
        self.metrics.retrieved(found.source, found.seconds)
        if found.source in ("none", "stale"):
            life.cut("retrieval")
        kept = prompt.fit(found.passages, self.settings.context_tokens)
        return Found(found.source, kept, found.reason, found.seconds)

    def _call(self, exchange: Exchange, asked: Asked, model: str, life: Life, deadline_at: float) -> Call:
        messages = asked.messages
        reduce = None
        if asked.lookup is not None and life.found is not None:
            messages = prompt.build(asked.lookup.query, life.found.passages)
            if len(life.found.passages) > 1:
                reduce = self._reducer(asked.lookup.query, life, life.found.passages)
        return Call(
            id=exchange.id,
            tenant=life.tenant,
            format=asked.format,
            model=model,
            max_tokens=asked.max_tokens,
            stream=asked.stream,
            deadline_at=deadline_at,
            messages=messages,
            prompt=asked.prompt,
            temperature=asked.temperature,
            top_p=asked.top_p,
            stop=asked.stop,
            seed=asked.seed,
            ignore_eos=asked.ignore_eos,
            include_usage=asked.include_usage,
            body=asked.body,
            reduce=reduce,
        )

    def _reducer(self, query: str, life: Life, passages: list[Passage]) -> Callable[[], list[Message]]:
        """The retry's prompt: the nearer half of the passages, and the answer says so."""

        def reduce() -> list[Message]:
            fewer = prompt.halved(passages)
            life.cut("context")
            if life.found is not None:
                life.found = Found(life.found.source, fewer, life.found.reason, life.found.seconds)
            return prompt.build(query, fewer)

        return reduce

    async def _tell_whole(self, exchange: Exchange, surface: Surface, call: Call, answer: Whole, life: Life) -> None:
        now = asyncio.get_running_loop().time()
        body = answer.raw
        if body is None or call.body is None:
            body = surface.whole(call, answer, life, now, unix_seconds())
        await exchange.reply(200, body, headers=life.headers(now))

    async def _tell_stream(self, exchange: Exchange, surface: Surface, call: Call, begun: Begun, life: Life) -> None:
        """Headers go out with the first output, so that until then a failure has its own status."""
        now = asyncio.get_running_loop().time
        created = unix_seconds()
        stream, delta = begun.stream, begun.first
        life.first_at = now()
        self.metrics.first_token(life.tenant, life.first_at - life.began_at)
        headers = [(b"cache-control", b"no-cache"), *life.headers(None)]
        await exchange.start(200, b"text/event-stream; charset=utf-8", headers)
        head = surface.head(call, created) if delta is None or delta.raw is None else b""
        if head:
            await exchange.write(head)
        while delta is not None:
            await exchange.write(surface.delta(call, delta, created) if delta.raw is None else delta.raw)
            delta = await stream.next()
        if stream.end is None:
            raise UpstreamError("the stream has no end")
        life.end = stream.end
        if stream.tail:
            last = passed_through(stream.tail, life.timing(now()))
        else:
            last = surface.last(call, stream.end, life, now(), created)
        await exchange.write(last)
        await exchange.end()

    async def _tell_failure(self, exchange: Exchange, failure: WeirError) -> None:
        """Before the headers a failure has its status; after them it is an event, and the stream has no [DONE]."""
        if exchange.gone:
            return
        if not exchange.started:
            await exchange.refuse(failure)
            return
        _, _, body = problem(failure)
        await exchange.write(b"event: error\ndata: " + body + b"\n\n")
        await exchange.end()

    def _settle(self, exchange: Exchange, ticket: Ticket, life: Life, outcome: Outcome, now: float) -> None:
        """Give everything back and count it: the only place where a request ends."""
        if not ticket.finish(outcome):
            return
        self.metrics.ended(life.tenant, outcome, now - life.began_at)
        exchange.log["outcome"] = outcome
        exchange.log["tenant"] = life.tenant
        if life.place is not None:
            exchange.log["worker"] = life.place.worker.name
            self._account(life, life.place, outcome, now)

    def _account(self, life: Life, place: Place, outcome: Outcome, now: float) -> None:
        """What the place was good for; a worker that still works for nobody is told to stop."""
        held_s = now - life.dispatched_at if life.dispatched_at else 0.0
        if outcome is Outcome.SERVED and life.end is not None:
            tokens = life.end.prompt_tokens + life.end.completion_tokens
            self.metrics.served(life.tenant, tokens, life.end.queue_ms / 1000)
            self.metrics.degraded(life.degraded)
            self.dispatcher.served(held_s)
        elif life.dispatched_at and outcome.ending is Ending.FAILED:
            self.metrics.wasted(outcome, held_s)
            if outcome in STILL_RUNNING:
                self.dispatcher.cancel(place)


def stop_when_gone(exchange: Exchange) -> None:
    """A client that leaves cancels its own request, streamed or not, wherever it stands."""
    task = asyncio.current_task()
    if task is not None:
        exchange.on_gone(task.cancel)


def _too_late(life: Life) -> Refused:
    started = life.place is None or life.dispatched_at
    outcome = Outcome.DEADLINE_EXCEEDED if started else Outcome.DEADLINE_EXPIRED
    where = "while the answer was being made" if started else "before a worker was reached"
    return Refused(outcome, f"the deadline of {life.deadline_ms:g} ms passed {where}", deadline_ms=life.deadline_ms)
