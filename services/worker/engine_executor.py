"""Where an engine runs, so that the event loop beside it never waits for a step.

The batching loop turns a `EngineExecutor`, not an engine: it has the engine's facts and verbs, and a `step` that can be
awaited. There are two. `LocalExecutor` keeps the engine in this process and suits one that computes in no time (the
simulated one): it takes the step and then waits as long as the engine says the step lasts. `EngineProcess` (see
`process`) keeps the engine in a process of its own and suits one that computes for real.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from services.contracts.generate import GenerateRequest
from services.runtime.starting import CannotStart
from services.worker.engine import Engine, Expected, Sequence, Step

MAX_LAG_S = 0.05  # timers fire late; the next steps make that up, but a longer stall is not replayed


class EngineDied(Exception):
    """The engine is gone, and with it every sequence it ran. `EngineExecutor.restart` makes a new one."""


class EngineUnusable(CannotStart):
    """The engine cannot be made: no such model or device, not enough memory. The message says what to do."""


class EngineExecutor(Protocol):
    """An engine and the place where it runs. What is no coroutine answers at once."""

    on_death: Callable[[], None]
    """Called when the engine ends by itself, also while nothing is asked of it."""

    @property
    def died(self) -> str:
        """How it ended; empty while it lives."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def kv_usage(self) -> float: ...
    @property
    def expected(self) -> Expected: ...
    @property
    def description(self) -> str: ...

    async def start(self) -> None:
        """Make the engine ready to step. Raises EngineUnusable; takes as long as a model takes to load."""

    async def prepare(self, request: GenerateRequest) -> Sequence:
        """`Engine.prepare`. Raises BadInput, or EngineDied."""

    def admit(self, sequence: Sequence) -> None:
        """`Engine.admit`, in force from the next step on."""

    def drop(self, sequence: Sequence) -> None:
        """`Engine.drop`, in force before the next step: at most the step that runs computes a token for it."""

    async def step(self) -> Step:
        """`Engine.step`. Raises EngineDied; any other exception fails the running sequences, which are then dropped."""

    def rest(self) -> None:
        """Nothing runs and nobody waits: the next step follows no other."""

    async def restart(self) -> None:
        """A new engine in place of one that died or stands still; nothing runs in it. Raises EngineUnusable."""

    async def stop(self) -> None:
        """Give everything back. Called once, also when `start` failed."""


class LocalExecutor:
    """An engine in this process whose steps take no time to compute and some time to be over."""

    died = ""  # not without this process

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.on_death: Callable[[], None] = self.rest  # never called
        self._due_at = -math.inf  # when the last step was over, or should have been

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def model(self) -> str:
        return self.engine.model

    @property
    def slots(self) -> int:
        return self.engine.slots

    @property
    def context_tokens(self) -> int:
        return self.engine.context_tokens

    @property
    def kv_tokens(self) -> int:
        return self.engine.kv_tokens

    @property
    def kv_usage(self) -> float:
        return self.engine.kv_usage

    @property
    def expected(self) -> Expected:
        return self.engine.expected

    @property
    def description(self) -> str:
        return repr(self.engine)

    async def start(self) -> None:
        """Nothing to load."""

    async def prepare(self, request: GenerateRequest) -> Sequence:
        return self.engine.prepare(request)

    def admit(self, sequence: Sequence) -> None:
        self.engine.admit(sequence)

    def drop(self, sequence: Sequence) -> None:
        self.engine.drop(sequence)

    async def step(self) -> Step:
        """Computed at once, returned when it would be over. A timer that fired late shortens the next wait."""
        step = self.engine.step()
        now = asyncio.get_running_loop().time()
        began = self._due_at if now - self._due_at <= MAX_LAG_S else now
        self._due_at = began + step.duration_s
        await asyncio.sleep(max(0.0, self._due_at - now))
        return step

    def rest(self) -> None:
        self._due_at = -math.inf

    async def restart(self) -> None:
        """It cannot have died without this process, but a step of it may have been cut short that never ended."""
        self.rest()

    async def stop(self) -> None:
        self.engine.close()

    def __repr__(self) -> str:
        return f"<LocalExecutor of {self.engine!r}>"
