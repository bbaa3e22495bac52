"""An engine in a process of its own, so that the worker's event loop never shares an interpreter with it.

A step of a torch engine is some thousand calls, each of which takes the interpreter's lock; in one process, each would
wait for the event loop and the loop for it. Apart they share processors only, and a driver that hangs, a segmentation
fault or the kernel's out-of-memory killer takes the engine and leaves the worker, which answers for it.

    worker                                        engine's process (`child`)
    admit, drop: noted (`sequence_table`)
    step        -- Turn(drops, admits) -->        drop, admit, compute one step
                <-- Turned(tokens, ...) --
    prepare     -- Prepare(request) -->           tokenize, beside the step that runs
                <-- Prepared(counts) --

The two go in lock step: the process computes nothing that it was not asked for. So a dropped sequence
gets at most the token of the step that runs when it is dropped, and an answer belongs to the step that asked for it.
The price is one round trip a step, in which nothing is computed.
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
from services.worker.engine import Expected, Sequence, Step
from services.worker.engine_executor import EngineDied, EngineUnusable
from services.worker.engine_link import Died, EngineLink
from services.worker.sequence_table import SequenceTable

COMMAND = (sys.executable, "-m", "services.worker.child")
STOP_WITHIN_S = 2.0
REPLACED = "it was replaced, or stopped, meanwhile"


class EngineFault(RuntimeError):
    """The engine raised, in its own process, and is still there. The text is its error's kind and message."""


class EngineProcess:
    """A `EngineExecutor`. Until `start` its facts are those that were asked for, then the engine's own."""

    def __init__(self, spec: wire.EngineSpec, *, start_within_s: float, command: Texts[str] = COMMAND) -> None:
        self._spec = spec
        self._start_within_s = start_within_s
        self._command = command
        self._numbers = itertools.count(1)
        self._table = SequenceTable()
        self._link: EngineLink | None = None
        self._pending: asyncio.Future[wire.Answer | Died] | None = None
        self._ready = _asked_for(spec)
        self._state = self._ready.state
        self.on_death: Callable[[], None] = _cancelled_caller
        """Called when a process that was ready ends by itself, also when no question is open: see `died`."""

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
    def expected(self) -> Expected:
        return self._ready.expected

    @property
    def description(self) -> str:
        """A line for the log: the engine's own account of itself when it was made."""
        return self._ready.description

    @property
    def pid(self) -> int | None:
        """Of the engine's process, while there is one."""
        return None if self._link is None or self._link.died else self._link.process.pid

    @property
    def died(self) -> str:
        """How the process ended by itself; empty while there is one that lives, and where there is none."""
        return "" if self._link is None or self._link.died is None else self._link.died.why

    # Beginning and end

    async def start(self) -> None:
        try:
            self._link = await EngineLink.spawn(self._command)
        except OSError as error:
            raise EngineUnusable(f"the engine's process cannot be started: {error}") from None
        asked = self._link.ask(wire.Start(next(self._numbers), self._spec))
        await asyncio.wait([asked], timeout=self._start_within_s)
        answer = asked.result() if asked.done() else None
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
        """Asks the engine to close, and does not wait long. May be called again."""
        with contextlib.suppress(EngineUnusable):
            await self._end(STOP_WITHIN_S)

    async def _end(self, asked_s: float = 0.0) -> None:
        """No process and nothing noted for it. Raises EngineUnusable if it cannot be killed."""
        link, self._link = self._link, None
        self._table = SequenceTable()
        self._pending = None
        if link is None:
            return
        try:
            if asked_s:
                link.post(wire.Stop())
                await link.ended_within(asked_s)
            await link.end(REPLACED)
        finally:
            if link.died is None:
                self._link = link  # for whoever tries next
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
                return f"the engine died while it was made: {why}"
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
        sequence = self._table.add(prepared.number, request, prepared.prompt_tokens, prepared.unread_tokens)
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
        """One round trip. Where a caller gave up waiting for the last step, that is still the one that runs."""
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
        """Those who were dropped last are told now, since no step will tell it: their memory is given back."""
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
        """It answered what nobody asked: nothing it says can be believed."""
        link.broken(f"it sent a {type(answer).__name__} that answers nothing")
        return EngineDied(f"it sent a {type(answer).__name__} that answers nothing")

    def __repr__(self) -> str:
        return f"<EngineProcess {self.pid or 'of no process'}, {self._table!r}>"


def _cancelled_caller() -> None:
    pass


def _asked_for(spec: wire.EngineSpec) -> wire.Ready:
    state = wire.EngineState(0, 0.0, spec.slots, spec.kv_tokens)
    return wire.Ready(0, type(spec).__name__.lower(), spec.model, spec.context_tokens, Expected(), state)
