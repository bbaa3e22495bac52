"""Work for nobody: what becomes of a request without cancellation when its client leaves, or its deadline passes.

With cancellation such a request ends: its place in line or at its worker is the next one's at once. Without it the
client is told all the same, and is counted as told; the work goes on to its end, as behind a proxy that does not look
back. It is an *orphan* then. It is wasted from its start to its end, and settled when it ends.

A request is treated by what was in force when it came, so the usual one pays nothing for this. When cancellation comes
back every orphan ends, and whoever becomes one of those that came meanwhile ends as well.

Bounds: an orphan holds a place in line or at a worker like any other request, so there are never more than both have
places. It holds it no longer than `hold_s` after it came, whatever its worker does.
"""

from __future__ import annotations

import asyncio
from math import inf

from services.core.outcome import Outcome
from services.router.asking.alarm import Alarm
from services.router.observing.journal import Journal
from services.router.observing.life import Life
from services.router.observing.metrics import RouterMetrics
from services.router.serving.telling import tell_failure_now
from services.runtime.errors import Refused
from services.runtime.http import Exchange
from services.runtime.ordered import OrderedSet

LONGEST_S = 600.0
"""What a worker may be told to take at most."""


class Orphans:
    """Who works for nobody. `cancels` follows the switch."""

    def __init__(self, metrics: RouterMetrics, journal: Journal, *, hold_s: float) -> None:
        self._metrics = metrics
        self._journal = journal
        self._hold_s = min(hold_s, LONGEST_S)
        self._works: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self.cancels = True

    def __len__(self) -> int:
        return len(self._works)

    def watch(self, exchange: Exchange, life: Life, deadline: float) -> Watch:
        """The alarm of a request that is not cancelled, from when it has its place."""
        task = exchange.task
        assert task is not None, "a handler that waits has become a task"
        watch = Watch(task, deadline, life.began_at + self._hold_s, exchange, life, self)
        exchange.on_gone(watch.gone)
        return watch

    def switch(self, cancels: bool) -> int:
        """Whether requests are cancelled from here on. If they are, all orphans end: so many."""
        self.cancels = cancels
        ended = list(self._works) if cancels else []
        for work in ended:
            work.cancel()
        return len(ended)

    def adopt(self, work: asyncio.Task[None], exchange: Exchange, life: Life, outcome: Outcome) -> None:
        """For its client it is over now, and so it is counted; its work goes on."""
        assert life.unheard is None, f"{exchange!r} is over for its client, as {life.unheard}: now {outcome}"
        now = asyncio.get_running_loop().time()
        after_s = now - life.began_at
        life.unheard = outcome
        self._metrics.ended(life.label, outcome, after_s)
        self._journal.unheard(exchange.id, life, outcome, now)
        exchange.log["told_ms"] = round(after_s * 1000, 2)
        self._works.add(work)
        work.add_done_callback(self._works.discard)

    def __repr__(self) -> str:
        return f"<Orphans {len(self)}, {'cancelled' if self.cancels else 'left alone'}>"


class Watch(Alarm):
    """An alarm that tells the client and lets the work go on; it rings for an orphan that has been held too long."""

    __slots__ = ("_exchange", "_life", "_orphans")

    def __init__(
        self, task: asyncio.Task[None], deadline: float, work_until: float,
        exchange: Exchange, life: Life, orphans: Orphans,
    ) -> None:  # fmt: skip
        super().__init__(task, deadline)
        self.work_until = max(deadline, work_until)
        self._exchange = exchange
        self._life = life
        self._orphans = orphans

    def gone(self) -> None:
        """Its client has left."""
        if self._orphans.cancels:
            self._task.cancel()
        elif self._life.unheard is None:
            self._go_on(Outcome.CLIENT_GONE)

    def set(self, limit: float, *, silence: bool = False) -> None:
        """For an orphan no limit of its client's counts any more, and the worker's silence does."""
        if silence or self._life.unheard is None:
            super().set(limit, silence=silence)

    def _ring(self) -> None:
        broken = self.silence and self.limit < self.deadline
        orphan, told = self._life.unheard is not None, self._life.end is not None
        if broken or orphan or told or self._orphans.cancels:
            super()._ring()
            return
        failure = self._too_late()
        self._go_on(Outcome.DEADLINE_EXCEEDED)
        tell_failure_now(self._exchange, failure)

    def _go_on(self, outcome: Outcome) -> None:
        self.stop()
        self.deadline = self.work_until
        if not self.silence:
            self.limit = inf
        self._handle = self._loop.call_at(min(self.limit, self.deadline), self._look)
        self._orphans.adopt(self._task, self._exchange, self._life, outcome)

    def _too_late(self) -> Refused:
        deadline_ms = self._life.deadline_ms
        if self.limit < self.deadline:
            what, reason = "the first token did not come in time", "first_token"
        else:
            what, reason = f"the deadline of {deadline_ms:g} ms passed", "deadline"
        return Refused(
            Outcome.DEADLINE_EXCEEDED, f"{what}; nothing is cancelled here, so its work goes on", reason=reason,
            deadline_ms=deadline_ms,
        )  # fmt: skip
