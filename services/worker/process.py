"""An engine in a process of its own, so that its steps do not hold the worker's interpreter lock.

    worker                                         engine's process (`child`)
    admit, drop: noted (`sequence_table`)
    step      -- StepRequest(drops, admits) -->    drop, admit, compute one step
              <-- StepResult(tokens, ...) --
    prepare   -- Prepare(request) -->              tokenize, while a step runs
              <-- Prepared(counts) --

The process computes only what it was asked for (lock step), which costs one round trip a step. Reasons and
alternatives: docs/decisions/029-an-engine-computes-in-a-process-of-its-own.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable
from collections.abc import Sequence as Texts

from services.contracts.generate import GenerateRequest
from services.runtime.errors import BadInput, TooLarge
from services.worker import engine_wire as wire
from services.worker.engine import Expected, Memory, Sequence, Step
from services.worker.engine_executor import EngineDied, EngineUnusable
from services.worker.engine_link import Died, EngineLink
from services.worker.sequence_table import SequenceTable

COMMAND = (sys.executable, "-m", "services.worker.child")
STOP_WITHIN_S = 2.0
REPLACED = "the engine was replaced or stopped in the meantime"


class EngineFault(RuntimeError):
    """The engine raised in its process and still runs. The text is the error's type and message."""


class EngineProcess:
    """A `EngineExecutor`. Before `start` its properties are those of `spec`, then those of the engine."""

    def __init__(self, spec: wire.EngineSpec, *, start_within_s: float, command: Texts[str] = COMMAND) -> None:
        self._spec = spec
        self._start_within_s = start_within_s
        self._command = command
        self._numbers = itertools.count(1)
        self._table = SequenceTable()
        self._link: EngineLink | None = None
        self._pending: asyncio.Future[wire.Answer | Died] | None = None
        self._ready = _facts_of(spec)
        self._state = self._ready.state
        self.on_death: Callable[[], None] = _do_nothing
        """Called when a process that was ready ends by itself, even while it is idle: see `died`."""

    @property
    def name(self) -> str:
        return self._ready.name

    @property
    def model(self) -> str:
        return self._ready.model

    @property
    def slots(self) -> int:
        return self._state.slots

    @property
    def running(self) -> int:
        return self._table.running

    @property
    def context_tokens(self) -> int:
        return self._ready.context_tokens

    @property
    def kv_tokens(self) -> int:
        return self._state.kv_tokens

    @property
    def kv_usage(self) -> float:
        return self._state.kv_usage

    @property
    def memory(self) -> Memory:
        return self._state.memory

    @property
    def expected(self) -> Expected:
        return self._ready.expected

    @property
    def description(self) -> str:
        """A line for the log, from the engine when it was created."""
        return self._ready.description

    @property
    def pid(self) -> int | None:
        """The process id; None without a live process."""
        return None if self._link is None or self._link.died else self._link.process.pid

    @property
    def died(self) -> str:
        """How the process ended by itself; empty while it lives, and before `start`."""
        return "" if self._link is None or self._link.died is None else self._link.died.why

    # Start and stop

    async def start(self) -> None:
        try:
            self._link = await EngineLink.spawn(self._command)
        except OSError as error:
            raise EngineUnusable(f"the engine's process cannot be started: {error}") from None
        started = self._link.ask(wire.Start(next(self._numbers), self._spec))
        await asyncio.wait([started], timeout=self._start_within_s)
        answer = started.result() if started.done() else None
        if isinstance(answer, wire.Ready):
            self._ready, self._state = answer, answer.state
            self._link.when_dead(self._ended)
            return
        await self._end()
        raise EngineUnusable(self._why_not(answer))

    async def restart(self) -> None:
        await self._end()
        await self.start()

    async def stop(self) -> None:
        """Ask the engine to close, wait up to STOP_WITHIN_S, then kill it. May be called again."""
        with contextlib.suppress(EngineUnusable):
            await self._end(STOP_WITHIN_S)

    async def _end(self, close_s: float = 0.0) -> None:
        """End the process and forget its sequences. Raises EngineUnusable if the process cannot be killed."""
        link, self._link = self._link, None
        self._table = SequenceTable()
        self._pending = None
        if link is None:
            return
        try:
            if close_s:
                link.post(wire.Stop())
                await link.ended_within(close_s)
            await link.end(REPLACED)
        finally:
            if link.died is None:
                self._link = link  # so that the next call tries again
        if link.died is None:
            raise EngineUnusable(f"the engine's process {link.process.pid} was killed and does not end")

    def _ended(self, link: EngineLink) -> None:
        if link is self._link:
            self.on_death()

    def _why_not(self, answer: wire.Answer | Died | None) -> str:
        match answer:
            case None:
                return f"the engine was not ready within {self._start_within_s:g} s"
            case wire.Unusable(message=message):
                return message
            case Died(why=why):
                return f"the engine ended while it was being created: {why}"
            case _:
                return f"the engine's process answered {type(answer).__name__} when it was to start"

    # Sequences

    async def prepare(self, request: GenerateRequest) -> Sequence:
        link, number = self._alive(), next(self._numbers)
        try:
            answer = await link.ask(wire.Prepare(number, wire.pack_request(request)))
        except wire.FrameTooLarge as error:
            raise TooLarge(f"the request does not fit between a worker and its engine: {error}") from None
        except asyncio.CancelledError:
            link.give_up(number)
            link.post(wire.Forget(number))
            raise
        match answer:
            case wire.Prepared() if link is self._link:
                return self._keep(link, request, answer)
            case wire.Rejected():
                raise BadInput(answer.message, answer.param, status=answer.status, code=answer.code)
            case wire.StepFailed():
                raise EngineFault(answer.error)
            case Died():
                raise EngineDied(answer.why)
            case wire.Prepared():
                raise EngineDied(REPLACED)
            case _:
                raise self._wrong(link, answer)

    def _keep(self, link: EngineLink, request: GenerateRequest, prepared: wire.Prepared) -> Sequence:
        sequence = Sequence(request, prepared.prompt_tokens, prepared.unread_tokens, max_tokens=prepared.max_tokens)
        self._table.add(prepared.number, sequence)
        if (surplus := self._table.surplus()) is not None:
            link.post(wire.Forget(surplus))
        return sequence

    def admit(self, sequence: Sequence) -> None:
        self._table.admit(sequence, slots=self.slots, kv_tokens=self.kv_tokens)

    def drop(self, sequence: Sequence) -> None:
        forgotten = self._table.drop(sequence)
        if forgotten is not None and self._link is not None:
            self._link.post(wire.Forget(forgotten))

    async def step(self) -> Step:
        """One round trip. If the caller of the last step was cancelled, waits for that step, which still runs."""
        link = self._alive()
        pending = self._pending
        if pending is None:
            pending = link.ask(wire.StepRequest(next(self._numbers), self._table.drops(), self._table.admits()))
            self._pending = pending
        await asyncio.wait([pending])
        if pending is not self._pending:
            raise EngineDied(REPLACED)
        self._pending = None
        match answer := pending.result():
            case wire.StepResult():
                return self._take(link, answer)
            case wire.StepFailed():
                raise EngineFault(answer.error)
            case Died():
                raise EngineDied(answer.why)
            case _:
                raise self._wrong(link, answer)

    def rest(self) -> None:
        """Send pending drops now, since no step will carry them, so that their memory is freed."""
        link = self._link
        if link is not None and self._pending is None and self._table.owes_drops:
            link.ask(wire.Free(next(self._numbers), self._table.drops())).add_done_callback(self._freed)

    def _take(self, link: EngineLink, step_result: wire.StepResult) -> Step:
        try:
            step = self._table.take(step_result)
        except KeyError:
            raise self._wrong(link, step_result) from None
        self._state = step_result.state
        return step

    def _freed(self, answered: asyncio.Future[wire.Answer | Died]) -> None:
        answer = answered.result()
        if isinstance(answer, wire.Freed):
            self._state = answer.state

    def _alive(self) -> EngineLink:
        if self._link is None:
            raise EngineDied("there is no engine")
        if self._link.died is not None:
            raise EngineDied(self._link.died.why)
        return self._link

    def _wrong(self, link: EngineLink, answer: wire.Answer) -> EngineDied:
        """Kill a process that sent an unexpected answer."""
        link.broken(f"it sent a {type(answer).__name__} that answers nothing")
        return EngineDied(f"it sent a {type(answer).__name__} that answers nothing")

    def __repr__(self) -> str:
        return f"<EngineProcess {self.pid or 'of no process'}, {self._table!r}>"


def _do_nothing() -> None:
    pass


def _facts_of(spec: wire.EngineSpec) -> wire.Ready:
    state = wire.EngineState(0, 0.0, spec.slots, spec.kv_tokens)
    return wire.Ready(0, type(spec).__name__.lower(), spec.model, spec.context_tokens, Expected(), state)
