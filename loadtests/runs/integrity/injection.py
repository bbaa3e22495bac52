"""Injects the faults of the schedule, evenly over a part of the run, and records when each began and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Any

from loadtests.cluster.making import CLIENTS, POSTGRES, VALKEY
from loadtests.cluster.processes import StandError, frozen
from loadtests.cluster.stack import Stack
from loadtests.faults.wires import HEALTHY
from loadtests.runs.integrity import schedule
from loadtests.runs.integrity.checker import Trouble
from loadtests.runs.integrity.schedule import HOLDS_S, PlannedFault, What

CUT_AFTER_BYTES = 2000
LATENCY_MS, JITTER_MS = 40, 20
FINISH_WITHIN_S = 90.0
WHOLE_AGAIN_WITHIN_S = 10.0
MAX_PUT_OFF = 20
LOOK_EVERY_S = 0.05
WIRE_LINES = {
    What.RESET: "reset",
    What.CUT: f"cut {CUT_AFTER_BYTES}",
    What.SLOW: f"latency {LATENCY_MS} jitter {JITTER_MS}",
    What.HOLD: "freeze",
    What.GONE: "refuse",
}
NAMES = {
    schedule.RETRIEVAL: "retrieval", schedule.POSTGRES: POSTGRES, schedule.VALKEY: VALKEY, schedule.ROUTER: "router",
    schedule.CLIENTS: CLIENTS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """A fault as it happened to `part`, by `perf_counter`. A kill ends when the part is ready again."""

    card: PlannedFault
    part: str
    from_s: float
    to_s: float


def trouble_of(span: Span) -> Trouble:
    what, wire = span.card.what, span.card.part == schedule.CLIENTS
    return Trouble(
        span.from_s,
        span.to_s,
        wire,
        breaks=what in (What.KILL, What.RESET, What.CUT, What.GONE),
        holds=what in (What.FREEZE, What.HOLD, What.KILL),  # a router that listens again may not read yet
        kills=what is What.KILL,
        delay_s=2 * (LATENCY_MS + JITTER_MS) / 1000 if what is What.SLOW else 0.0,
    )


@dataclass
class FaultInjector:
    """`count` faults in `seconds`. A part has one fault at a time; different parts may have theirs at once.

    `alone`: one fault at a time overall, each when the router misses no component. `router_logged`: the size of the
    router's log in bytes at each start after the first.
    """

    stack: Stack
    cards: Iterator[PlannedFault]
    count: int
    seconds: float
    chance: Random
    alone: bool = False
    spans: list[Span] = field(default_factory=list)
    down: dict[str, float] = field(default_factory=dict)
    router_logged: list[int] = field(default_factory=list)
    _put_off: list[PlannedFault] = field(default_factory=list)

    def troubles(self) -> list[Trouble]:
        """The faults that clients may notice at their own connections."""
        return [trouble_of(span) for span in self.spans if span.card.part in (schedule.ROUTER, schedule.CLIENTS)]

    def kills(self) -> list[tuple[str, Trouble]]:
        return [
            (span.part, trouble_of(span))
            for span in self.spans
            if span.card == PlannedFault(schedule.WORKER, What.KILL)
        ]

    async def run(self) -> None:
        """Inject all faults, until each is over. Raises StandError if a part does not come back."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        gap_s = self.seconds / (self.count + 1)
        async with asyncio.TaskGroup() as group:
            for number in range(1, self.count + 1):
                await asyncio.sleep(max(0.0, began + number * gap_s - loop.time()))
                if self.alone:
                    await self._until_whole()
                card, part = await self._next()
                self.down[part] = perf_counter()
                group.create_task(self._one(card, part))

    async def _until_whole(self) -> None:
        """Wait for the end of the previous fault, and up to WHOLE_AGAIN_WITHIN_S for all components."""
        while self.down:  # noqa: ASYNC110  the end of a fault sets no event
            await asyncio.sleep(LOOK_EVERY_S)
        with contextlib.suppress(StandError):
            await self.stack.until_whole(WHOLE_AGAIN_WITHIN_S)

    async def _next(self) -> tuple[PlannedFault, str]:
        """A card whose part has no fault now, postponed cards first. Waits if every part has a fault."""
        while True:
            for card in self._put_off:
                if part := self._free(card):
                    self._put_off.remove(card)
                    return card, part
            if len(self._put_off) < MAX_PUT_OFF:
                self._put_off.append(next(self.cards))
            else:
                await asyncio.sleep(LOOK_EVERY_S)

    def _free(self, card: PlannedFault) -> str:
        if card.part == schedule.WORKER:
            names = [server.process.name for server in self.stack.workers if server.process.name not in self.down]
            return self.chance.choice(names) if names else ""
        name = NAMES[card.part]
        return "" if name in self.down else name

    async def _one(self, card: PlannedFault, part: str) -> None:
        began = self.down[part]
        await self._do(card.what, part)
        self.spans.append(Span(card, part, began, perf_counter()))
        del self.down[part]

    def _do(self, what: What, part: str) -> Coroutine[Any, Any, None]:
        if what is What.KILL:
            return self._kill(part)
        return self._freeze(part) if what is What.FREEZE else self._disturb(part, what)

    async def _kill(self, name: str) -> None:
        part = self.stack.parts[name]
        part.kill()
        await asyncio.sleep(HOLDS_S[What.KILL])
        if name == NAMES[schedule.ROUTER]:
            self.router_logged.append(self.stack.router.process.log.stat().st_size)
        async with asyncio.timeout(FINISH_WITHIN_S):
            await part.start()

    async def _freeze(self, name: str) -> None:
        with frozen(self.stack.parts[name].pid):
            await asyncio.sleep(HOLDS_S[What.FREEZE])

    async def _disturb(self, name: str, what: What) -> None:
        wire = self.stack.wires[name]
        await wire.become(WIRE_LINES[what])
        try:
            await asyncio.sleep(HOLDS_S[what])
        finally:
            await wire.become(HEALTHY)
