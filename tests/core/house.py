"""A house in virtual time: a Weir, slots whose work takes a known time, and what became of every request."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from services.core.account import QueueBounds, TenantSpec
from services.core.admissioncheck import Admitted, Rejection
from services.core.choices import SchedulerSettings
from services.core.estimator import Estimator
from services.core.outcome import Outcome
from services.core.request import Request, Stage
from services.core.scheduler import Scheduler

PREFILL_S = 1e-4
"""Seconds per prompt token."""
TOKEN_S = 1e-2
"""Seconds per answer token."""
SERVICE_S = 50 * PREFILL_S + 20 * TOKEN_S
"""Of the usual request."""
ROOMY = QueueBounds(100_000)


def settings(**changes: Any) -> SchedulerSettings:
    """Bounds that nobody meets, and a second finish is an error."""
    return SchedulerSettings(
        **{"strict": True, "bounds": ROOMY, "unconfigured": TenantSpec("", ROOMY)} | changes,
    )


class House:
    """Slots of one pool. A request of p prompt tokens and an answer of n holds one for p * PREFILL_S + n * TOKEN_S."""

    def __init__(
        self, slots: int = 4, *, chosen: SchedulerSettings | None = None, knows_itself: bool = True,
        queues_all: bool = False,
    ) -> None:  # fmt: skip
        """`queues_all`: each request is queued, also one that could start at once."""
        self.random = Random(7)
        self.scheduler = Scheduler(chosen or settings(), self.random.random)
        self.now = 0.0
        self.free = slots
        self.queues_all = queues_all
        self.ids = itertools.count(1)
        self.answers: dict[Request, int] = {}
        self.fates: dict[Request, Rejection | Outcome] = {}
        self.waits_s: dict[Request, float] = {}
        self.admitted: dict[Request, Admitted] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        if knows_itself:
            per_slot = 90 / (50 * PREFILL_S + 20 * TOKEN_S)  # of the usual request, below
            self.scheduler.announce(
                "default",
                Estimator(work_per_slot_s=per_slot, prefill_s_per_token=PREFILL_S, s_per_token=TOKEN_S),
            )
        self.scheduler.capacity(0.0, slots)

    @property
    def estimator(self) -> Estimator:
        return self.scheduler.pools["default"].estimator

    def request(self, tenant: str = "a", *, slack_s: float = 1.0, answer: int = 20, **fields: Any) -> Request:
        """A request whose answer would end by itself after so many tokens."""
        sizes = {"prompt_tokens": 50, "max_tokens": 200} | fields
        request = Request(next(self.ids), tenant, self.now, self.now + slack_s, **sizes)
        self.answers[request] = answer
        return request

    def offer(self, tenant: str = "a", **fields: Any) -> Admitted | Rejection:
        """Offer one, and start whatever can."""
        return self.put(self.request(tenant, **fields))

    def put(self, request: Request) -> Admitted | Rejection:
        said = self.scheduler.admit(self.now, request, None if self.queues_all else self._has_slot)
        if isinstance(said, Rejection):
            self.fates[request] = said
        else:
            self.admitted[request] = said
            if request.stage is Stage.RUNNING:
                self._run(request)
        self.start()
        return said

    def start(self) -> None:
        """Start what can; each goes to its end, or to its deadline."""
        while self.free:
            request, evicted = self.scheduler.next(self.now)
            self._evict(evicted)
            if request is None:
                return
            self._run(request)

    def _has_slot(self, request: Request) -> bool:
        return self.free > 0

    def _run(self, request: Request) -> None:
        self.free -= 1
        self.waits_s[request] = self.now - request.queued_at
        tokens = min(self.answers[request], request.granted_tokens)
        read_s = (request.prompt_tokens + request.context_tokens) * PREFILL_S
        ends = min(request.deadline, self.now + read_s + tokens * TOKEN_S)
        self.at(min(ends, self.now + read_s), lambda: self.scheduler.first_token(self.now, request))
        self.at(ends, lambda: self.end(request))

    def end(self, request: Request) -> None:
        read = request.prompt_tokens + request.context_tokens
        written = round((self.now - request.started_at - read * PREFILL_S) / TOKEN_S)
        complete = written >= min(self.answers[request], request.granted_tokens)
        outcome = Outcome.SERVED if complete else Outcome.DEADLINE_EXCEEDED
        self.scheduler.finish(self.now, request, outcome, read, max(0, written))
        self.free += 1
        self.fates[request] = outcome
        self.start()

    def at(self, when: float, do: Callable[[], Any]) -> None:
        heappush(self._events, (when, next(self.ids), do))

    def every(self, gap_s: float, until_s: float, do: Callable[[], Any], *, jitter: bool = True) -> None:
        """Do it again and again; with jitter, as Poisson does."""

        def again() -> None:
            do()
            self.every(gap_s, until_s, do, jitter=jitter)

        when = self.now + (self.random.expovariate(1 / gap_s) if jitter else gap_s)
        if when < until_s:
            self.at(when, again)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while True:
            when = min(self._events[0][0] if self._events else until_s, self.scheduler.wakes_at())
            if when >= until_s:
                break
            self.now = max(self.now, when)
            if self.scheduler.wakes_at() <= self.now:
                self._evict(self.scheduler.expire(self.now))
            else:
                heappop(self._events)[2]()
        self.now = until_s

    def _evict(self, requests: list[Request]) -> None:
        for request in requests:
            assert request.stage is Stage.ENDED
            self.fates[request] = Outcome.DEADLINE_EXPIRED

    # ---- what became of them

    def count(self, what: Outcome | str, tenant: str | None = None) -> int:
        """How many ended so: an outcome, or the reason of a refusal."""
        return sum(
            (fate.reason if isinstance(fate, Rejection) else fate) == what
            for request, fate in self.fates.items()
            if tenant in (None, request.tenant)
        )

    def warm(self, tenant: str = "a", answers: int = 25, **fields: Any) -> None:
        """Let a tenant show what its answers are like, one after the other."""
        for _ in range(answers):
            self.offer(tenant, slack_s=100.0, **fields)
            self.run(self.now + 20.0)

    def fill(self, tenant: str = "filler", *, answer: int = 100, waiting: int = 0, **fields: Any) -> None:
        """Take all slots, and stand in line."""
        for _ in range(self.free + waiting):
            assert isinstance(self.offer(tenant, slack_s=1000.0, answer=answer, **fields), Admitted)
