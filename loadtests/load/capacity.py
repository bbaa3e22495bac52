"""What the workers can do, measured: one client for each slot, directly at the worker, asking again when answered.

This is the unit of every load and every goodput. It includes what a worker of this kind loses between two answers (a
newcomer waits for the running step to end), which is not the router's to win back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from urllib.parse import urlsplit

from loadtests.cluster.stand import Shape, Stand
from loadtests.load.arrivals import Ask
from loadtests.load.asking import Asking
from loadtests.load.connection import Exchange, Pool
from loadtests.load.figures import Quantiles, quantiles
from loadtests.load.plan import Step, Tenant

WARM_UP_S = 1.0
MEASURE_S = 4.0
ANSWER_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Answers and tokens a second, of usual answers, and how long one takes where every slot is always taken."""

    per_s: float
    tokens_per_s: float
    service_ms: Quantiles


class _ClosedLoop:
    """The clients of one worker."""

    def __init__(self, url: str, shape: Shape) -> None:
        parts = urlsplit(url)
        tenant = Tenant("capacity", (Step(0, 0),))
        self._ask = Ask(0.0, tenant, shape.prompt_tokens, shape.answer_tokens, False)
        self._asking = Asking(url, "generate")
        self._numbers = count()
        self._clients = shape.slots
        self.pool = Pool(parts.hostname or "", parts.port or 80, shape.slots)
        self.took_s: list[float] = []
        self.tokens = 0
        self.fault = ""
        self.counting = False
        self.over = False

    def start(self) -> None:
        for _ in range(self._clients):
            self._send()

    def _send(self) -> None:
        exchange = Exchange(self._asking.bytes_of(self._ask, next(self._numbers)), self._answered)
        loop = asyncio.get_running_loop()
        exchange.patience = loop.call_later(ANSWER_WITHIN_S, exchange.give_up, "no answer")
        self.pool.send(exchange)

    def _answered(self, exchange: Exchange) -> None:
        if self.over:
            return
        outcome = exchange.failure or exchange.answer.outcome()[0]
        if outcome != "served" or exchange.sent_at is None:
            self.fault = outcome
            return
        if self.counting:
            self.took_s.append(exchange.ended_at - exchange.sent_at)
            self.tokens += exchange.answer.tokens
        self._send()


async def measure(stand: Stand, seconds: float = MEASURE_S, warm_up_s: float = WARM_UP_S) -> Capacity:
    """Raises RuntimeError if a worker did not answer, or none did within these seconds."""
    loops = [_ClosedLoop(worker.url, stand.shape) for worker in stand.workers]
    try:
        for loop in loops:
            loop.start()
        await asyncio.sleep(warm_up_s)
        for loop in loops:
            loop.counting = True
        began = perf_counter()
        await asyncio.sleep(seconds)
        took = perf_counter() - began
    finally:
        for loop in loops:
            loop.over = True
            await loop.pool.close()
    if faults := [loop.fault for loop in loops if loop.fault]:
        raise RuntimeError(f"the capacity could not be measured: {faults[0]}")
    answers = [seconds for loop in loops for seconds in loop.took_s]
    if not answers:
        raise RuntimeError(f"the capacity could not be measured: there was no answer in {took:.1f} s")
    return Capacity(len(answers) / took, sum(loop.tokens for loop in loops) / took, quantiles(answers))
