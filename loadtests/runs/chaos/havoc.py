"""Doing what the deck says, evenly over a run, and writing down when each fault began and when it was over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from time import perf_counter
from typing import Any

from loadtests.faults.wires import HEALTHY
from loadtests.runs.chaos import deck
from loadtests.runs.chaos.checker import Trouble
from loadtests.runs.chaos.deck import HOLDS_S, Card, What
from loadtests.runs.chaos.making import POSTGRES, VALKEY
from loadtests.runs.chaos.parts import frozen
from loadtests.runs.chaos.stand import CLIENTS, Stand

CUT_AFTER_BYTES = 2000
LATENCY_MS, JITTER_MS = 40, 20
FINISH_WITHIN_S = 90.0
MOST_PUT_OFF = 20
LOOK_EVERY_S = 0.05
WIRE_LINES = {
    What.RESET: "reset",
    What.CUT: f"cut {CUT_AFTER_BYTES}",
    What.SLOW: f"latency {LATENCY_MS} jitter {JITTER_MS}",
    What.HOLD: "freeze",
    What.GONE: "refuse",
}
NAMES = {
    deck.RETRIEVAL: "retrieval", deck.POSTGRES: POSTGRES, deck.VALKEY: VALKEY, deck.ROUTER: "router",
    deck.CLIENTS: CLIENTS,
}  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Span:
    """A fault as it happened: to `part`, from when to when by `perf_counter`. Killed is over when ready again."""

    card: Card
    part: str
    from_s: float
    to_s: float


def trouble_of(span: Span) -> Trouble:
    """What a fault of the router or of the clients' wire means to those who ask."""
    what, wire = span.card.what, span.card.part == deck.CLIENTS
    return Trouble(
        span.from_s,
        span.to_s,
        wire,
        breaks=what in (What.KILL, What.RESET, What.CUT, What.GONE),
        holds=what in (What.FREEZE, What.HOLD, What.KILL),  # who listens again may not be ready to read yet
        kills=what is What.KILL,
        delay_s=2 * (LATENCY_MS + JITTER_MS) / 1000 if what is What.SLOW else 0.0,
    )


class Havoc:
    """`count` faults in a run of so many seconds. A part has one at a time; different parts may have theirs at once."""

    def __init__(self, stand: Stand, count: int, seconds: float, seed: int, say: Say) -> None:
        self.spans: list[Span] = []
        self.down: dict[str, float] = {}
        self._stand = stand
        self._count = count
        self._gap_s = seconds / (count + 1)
        self._cards = deck.deal(seed)
        self._chance = Random(seed)
        self._say = say
        self._put_off: list[Card] = []

    def troubles(self) -> list[Trouble]:
        """What of it clients may feel at their own connections."""
        return [trouble_of(span) for span in self.spans if span.card.part in (deck.ROUTER, deck.CLIENTS)]

    async def go_on(self) -> None:
        """All of them, and until each is over. Raises StandError where a part does not come back."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(1, self._count + 1):
                await asyncio.sleep(max(0.0, began + number * self._gap_s - loop.time()))
                card, part = await self._next()
                self.down[part] = perf_counter()
                group.create_task(self._one(card, part))

    async def _next(self) -> tuple[Card, str]:
        """A card whose part is well, those first that had to wait; waits itself where every part has trouble."""
        while True:
            for card in self._put_off:
                if part := self._free(card):
                    self._put_off.remove(card)
                    return card, part
            if len(self._put_off) < MOST_PUT_OFF:
                self._put_off.append(next(self._cards))
            else:
                await asyncio.sleep(LOOK_EVERY_S)

    def _free(self, card: Card) -> str:
        """The part that it will be done to; empty where that one has a fault already."""
        if card.part == deck.WORKER:
            names = [server.process.name for server in self._stand.workers if server.process.name not in self.down]
            return self._chance.choice(names) if names else ""
        name = NAMES[card.part]
        return "" if name in self.down else name

    async def _one(self, card: Card, part: str) -> None:
        began = self.down[part]
        self._say(f"  {card.what} of {part}")
        await self._do(card.what, part)
        self.spans.append(Span(card, part, began, perf_counter()))
        del self.down[part]

    def _do(self, what: What, part: str) -> Coroutine[Any, Any, None]:
        if what is What.KILL:
            return self._kill(part)
        return self._freeze(part) if what is What.FREEZE else self._disturb(part, what)

    async def _kill(self, name: str) -> None:
        part = self._stand.parts[name]
        part.kill()
        await asyncio.sleep(HOLDS_S[What.KILL])
        async with asyncio.timeout(FINISH_WITHIN_S):
            await part.start()

    async def _freeze(self, name: str) -> None:
        with frozen(self._stand.parts[name]):
            await asyncio.sleep(HOLDS_S[What.FREEZE])

    async def _disturb(self, name: str, what: What) -> None:
        wire = self._stand.wires[name]
        await wire.become(WIRE_LINES[what])
        try:
            await asyncio.sleep(HOLDS_S[what])
        finally:
            await wire.become(HEALTHY)
