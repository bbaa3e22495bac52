"""The open loop: every request leaves at its intended time, whatever happened to earlier ones.

A closed-loop client slows down with the server and hides the waiting time of others (coordinated omission). Here
latency counts from the *intended* time. The generator's own lateness is in the ledger (`sent_s - intended_s`), so a run
shows which part of its figures it caused. One timer serves the next arrival and one each try's timeout.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from time import perf_counter
from typing import Protocol
from urllib.parse import urlsplit

from loadtests.load.answer import SERVED, Answer
from loadtests.load.arrivals import Ask, asks, numbered
from loadtests.load.asking import Asking
from loadtests.load.connection import Exchange, Pool
from loadtests.load.ledger import GAVE_UP, HELD_BACK, LATE, ON_TIME, Ledger, Row
from loadtests.load.plan import Plan
from loadtests.load.retry import pause_s

PORTS = {"http": 80, "https": 443}
TICK_S = 0.001  # uvloop's timers count whole milliseconds
START_IN_S = 0.05
LOOK_EVERY_S = 1.0
BEAT_S = 0.005
BURST_S = 0.1
"""A bounded rate permits a burst of this many seconds' worth at once."""

Watch = Callable[[float, Ledger], None]
Listen = Callable[[Row, Exchange], None]


class Requests(Protocol):
    """Builds a request's bytes; `number` is unique in the run. `Asking` is the usual implementation. Retries of tenants
    that repeat their bytes are not built anew."""

    def bytes_of(self, ask: Ask, number: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits over all tenants and tries.

    A request whose next try would exceed `per_s` or `under_way` ends as `held_back`. One that would exceed `returning`
    (requests that wait for their next try) ends as its last try did.
    """

    per_s: float
    under_way: int
    returning: int


def _pool(url: str, limit: int, rest_s: float | None) -> Pool:
    """The connections to an address. Raises ValueError if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not an http:// or https:// address")
    return Pool(parts.hostname, parts.port or PORTS[parts.scheme], limit, rest_s, tls=parts.scheme == "https")


class Client:
    """One run of one plan against one address.

    `requests` replaces the usual questions, `answer` builds the reader of each answer, and `listen` is called for every
    ended try. A connection idle for more than `rest_s` seconds (default 5) is not reused. `ledger` replaces the
    default. `urls`: the addresses of tenants that do not use `url`.
    """

    def __init__(
        self,
        plan: Plan,
        url: str,
        source: Iterator[Ask] | None = None,
        *,
        requests: Requests | None = None,
        answer: Callable[[], Answer] = Answer,
        listen: Listen | None = None,
        rest_s: float | None = None,
        bounds: Bounds | None = None,
        ledger: Ledger | None = None,
        urls: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.ledger = Ledger() if ledger is None else ledger
        self._requests: Requests = requests or Asking(url, plan.route)
        self._answer = answer
        self._listen = listen
        self._source = numbered(asks(plan) if source is None else source)
        shared = None if bounds is None else _pool(url, bounds.under_way, rest_s)
        self._pools = {
            tenant.name: shared or _pool((urls or {}).get(tenant.name, url), tenant.connections, rest_s)
            for tenant in plan.tenants
        }
        self._chance = Random(f"{plan.seed}:retries")
        self._bounds = bounds
        self._rate_used_until = -math.inf
        self._next: tuple[int, Ask] | None = None
        self._sent = 0
        self._under_way: set[Exchange] = set()
        self._returning: dict[Row, tuple[asyncio.TimerHandle, str]] = {}
        self._stopped = False
        self._began_at = 0.0
        self._over: asyncio.Future[None] | None = None
        self._beat_at = self._lag_s = 0.0

    @property
    def unasked(self) -> int:
        """Answers that arrived on a connection without a request."""
        return sum(pool.unasked for pool in set(self._pools.values()))

    @property
    def now_s(self) -> float:
        """Seconds since the run began; 0 before."""
        return max(0.0, self._now()) if self._began_at else 0.0

    def stop(self, *, at_once: bool = False) -> None:
        """Stop arrivals and retries. `at_once` also abandons the tries under way."""
        self._stopped, self._next = True, None
        for row, (timer, outcome) in self._returning.items():
            timer.cancel()
            self.ledger.close(row, outcome)
        self._returning.clear()
        for exchange in tuple(self._under_way) if at_once else ():
            exchange.give_up(GAVE_UP)
        self._look_for_the_end()

    async def run(self, watch: Watch | None = None) -> Ledger:
        """Send everything and wait for every ending. `watch` is called about once a second."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._began_at = perf_counter() + START_IN_S
        watching = loop.create_task(self._watch(watch)) if watch is not None else None
        try:
            with _no_collection():
                self._advance()
                self._tick()
                self._beat()
                await self._over
        finally:
            if watching is not None:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
            for pool in set(self._pools.values()):
                await pool.close()
        return self.ledger

    async def _watch(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            watch(self._now(), self.ledger)

    def _beat(self) -> None:
        """Measure how long the event loop was blocked: answers that arrived meanwhile were not late."""
        now = perf_counter()
        if self._beat_at:
            self._lag_s = max(0.0, now - self._beat_at - BEAT_S)
        self._beat_at = now
        if self._over is not None and not self._over.done():
            asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _away_s(self) -> float:
        """How much earlier an event noticed now may have happened: the lag of the last beat, or since it."""
        return max(self._lag_s, perf_counter() - self._beat_at - BEAT_S, 0.0)

    def _now(self) -> float:
        return perf_counter() - self._began_at

    def _advance(self) -> None:
        self._next = None if self._stopped else next(self._source, None)

    def _tick(self) -> None:
        """Send what is due and set the timer for the next arrival."""
        if self._over is None or self._over.done():
            return
        try:
            while self._next is not None and self._next[1].at_s <= self._now():
                self._arrive(*self._next)
                self._advance()
        except Exception as error:
            self._over.set_exception(error)  # a fault of this program must not look like a silent server
            return
        if self._next is None:
            self._look_for_the_end()
        else:
            pause = max(TICK_S, self._next[1].at_s - self._now())
            asyncio.get_running_loop().call_later(pause, self._tick)

    def _look_for_the_end(self) -> None:
        if self._next is None and self.ledger.open == 0 and self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _arrive(self, number: int, ask: Ask) -> None:
        row = Row(number, ask.tenant.name, ask.at_s, ask.deadline_ms)
        row.stream, row.prompt_tokens, row.asked_tokens = ask.stream, ask.prompt_tokens, ask.answer_tokens
        row.impatient = ask.impatient
        self.ledger.enter(row)
        self._try(row, ask)

    def _try(self, row: Row, ask: Ask, last: Exchange | None = None) -> None:
        """Send a request. `last`: the try before, whose bytes and connection it repeats."""
        self._returning.pop(row, None)
        if not self._may_send():
            self.ledger.close(row, HELD_BACK)
            self._look_for_the_end()
            return
        self._sent += 1
        row.attempts += 1
        self.ledger.began(row, self._now())
        request = self._requests.bytes_of(ask, self._sent) if last is None else last.request
        exchange = Exchange(request, partial(self._settle_or_stop, row, ask))
        exchange.answer = self._answer()
        loop = asyncio.get_running_loop()
        exchange.timeout = loop.call_later(ask.waits_s, exchange.give_up, GAVE_UP)
        self._under_way.add(exchange)
        self._pools[ask.tenant.name].send(exchange, None if last is None else last.kept)

    def _may_send(self) -> bool:
        """Whether the limits permit a try; if so, count it."""
        bounds = self._bounds
        if bounds is None:
            return True
        now = self._now()
        used_until = max(self._rate_used_until, now - BURST_S)
        if used_until > now or len(self._under_way) >= bounds.under_way:
            return False
        self._rate_used_until = used_until + 1 / bounds.per_s
        return True

    def _settle_or_stop(self, row: Row, ask: Ask, exchange: Exchange) -> None:
        """End the run at a fault of the bookkeeping, which would vanish in a callback."""
        try:
            self._settle(row, ask, exchange)
        except Exception as error:
            if self._over is not None and not self._over.done():
                self._over.set_exception(error)

    def _settle(self, row: Row, ask: Ask, exchange: Exchange) -> None:
        """End the row of an ended try, or schedule the next try."""
        self._under_way.discard(exchange)
        self._write_down(row, exchange)
        if self._listen is not None:
            self._listen(row, exchange)
        outcome = self._outcome(row, exchange)
        self.ledger.tried(row, outcome)
        pause = None if outcome in (ON_TIME, LATE) else self._pause_s(row, ask, outcome)
        if pause is None:
            self.ledger.close(row, outcome)
            self._look_for_the_end()
            return
        row.tried_s = self._now() + pause
        last = exchange if ask.tenant.retries.repeats else None
        if last is not None and not pause:
            self._try(row, ask, last)  # before anybody else takes its connection
            return
        self._returning[row] = asyncio.get_running_loop().call_later(pause, self._try, row, ask, last), outcome

    def _pause_s(self, row: Row, ask: Ask, outcome: str) -> float | None:
        if self._stopped or (self._bounds is not None and len(self._returning) >= self._bounds.returning):
            return None
        refused = outcome.startswith("refused:")
        return pause_s(
            ask.tenant.retries, row.attempts, refused=refused, should_retry=row.should_retry, hint_ms=row.hint_ms,
            chance=self._chance, impatient=ask.impatient,
        )  # fmt: skip

    def _write_down(self, row: Row, exchange: Exchange) -> None:
        answer = exchange.answer
        row.end_s, row.lag_s = exchange.ended_at - self._began_at, self._away_s()
        row.last_sent_s = None if exchange.sent_at is None else exchange.sent_at - self._began_at
        row.sent_s = row.last_sent_s if row.sent_s is None else row.sent_s
        row.first_s = None if exchange.first_at is None else exchange.first_at - self._began_at
        row.status, row.level, row.degraded = answer.status, answer.level, answer.degraded
        row.hint_ms, row.should_retry = answer.hint_ms, answer.should_retry

    def _outcome(self, row: Row, exchange: Exchange) -> str:
        if exchange.failure == GAVE_UP:
            return GAVE_UP
        if exchange.failure:
            return f"failed:{exchange.failure}"
        outcome, row.code = exchange.answer.outcome()
        row.tokens, row.source = exchange.answer.tokens, exchange.answer.retrieval_source
        if outcome != SERVED:
            return outcome
        latency_s = row.latency_s
        return ON_TIME if latency_s is not None and latency_s * 1000 <= row.deadline_ms else LATE


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch off garbage collection and its pauses: a run's rows are bounded and hold no cycles.

    What others have frozen stays so: the next collection would walk through all that they keep.
    """
    was_on, is_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not is_frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()
        if was_on:
            gc.enable()
