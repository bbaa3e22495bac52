"""Where an engine runs, so that the event loop does not wait for its computation.

`LocalExecutor` steps the simulated engine in this process and sleeps for the step's duration; `EngineProcess` (in
`process`) runs an engine that computes in its own process.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from services.contracts.generate import GenerateRequest
from services.runtime.starting import CannotStart
from services.worker.engine import Engine, Expected, Memory, Sequence, Step

MAX_LAG_S = 0.05  # a timer's delay up to this is made up by the next step; a longer stall is not


class EngineDied(Exception):
    """The engine is gone, with every sequence it ran. `EngineExecutor.restart` creates a new one."""


class EngineUnusable(CannotStart):
    """The engine cannot be created: no such model or device, not enough memory. The message says what to do."""


class EngineExecutor(Protocol):
    """An engine and the place where it runs. Methods that are not coroutines return at once."""

    on_death: Callable[[], None]
    """Called when the engine ends by itself, even while it is idle."""

    @property
    def died(self) -> str:
        """How the engine ended; empty while it lives."""

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
    def memory(self) -> Memory: ...
    @property
    def expected(self) -> Expected: ...
    @property
    def description(self) -> str: ...

    async def start(self) -> None:
        """Load the engine, which takes as long as loading the model. Raises EngineUnusable."""

    async def prepare(self, request: GenerateRequest) -> Sequence:
        """As `Engine.prepare`. Raises BadInput or EngineDied."""

    def admit(self, sequence: Sequence) -> None:
        """As `Engine.admit`, from the next step on."""

    def drop(self, sequence: Sequence) -> None:
        """As `Engine.drop`, before the next step: at most the running step still computes a token for the sequence."""

    async def step(self) -> Step:
        """As `Engine.step`. Raises EngineDied; after any other exception the caller drops the running sequences."""

    def rest(self) -> None:
        """The engine becomes idle: the next step does not follow directly on the last one."""

    async def restart(self) -> None:
        """Replace an engine that died or hangs; nothing runs in the new one. Raises EngineUnusable."""

    async def stop(self) -> None:
        """Release everything. Called once, even if `start` failed."""


class LocalExecutor:
    """Runs a simulated engine in this process and waits out the duration of each step."""

    died = ""  # it cannot die without this process

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.on_death: Callable[[], None] = self.rest  # never called
        self._due_at = -math.inf  # when the last step ended, without the timer's delay

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
    def memory(self) -> Memory:
        return self.engine.memory

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
        """Compute at once and return when the step would be over. A timer's delay shortens the next wait."""
        step = self.engine.step()
        now = asyncio.get_running_loop().time()
        began = self._due_at if now - self._due_at <= MAX_LAG_S else now
        self._due_at = began + step.duration_s
        await asyncio.sleep(max(0.0, self._due_at - now))
        return step

    def rest(self) -> None:
        self._due_at = -math.inf

    async def restart(self) -> None:
        """Forget the time of a step that was cancelled; the engine itself cannot have died."""
        self.rest()

    async def stop(self) -> None:
        self.engine.close()

    def __repr__(self) -> str:
        return f"<LocalExecutor of {self.engine!r}>"
