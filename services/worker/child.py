"""The engine's process: `python -m services.worker.child FD`, where FD is one end of a socket pair.

    reader     passes on each frame; ends the process when the other end is closed
    preparer   tokenizes and checks prompts, while a step runs
    main       creates the engine, then drops, admits and computes one step for each `StepRequest`

The same requests in the same order give the same answers. SIGINT and SIGTERM are ignored, because the worker ends the
process. Tracebacks are logged without the error's message, which might quote a prompt.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import NoReturn, TypeVar, assert_never

import msgspec

from services.contracts.generate import GenerateRequest
from services.runtime.errors import BadInput
from services.worker import engine_wire as wire
from services.worker.engine import Engine, Sequence, Step
from services.worker.engine_executor import EngineDied, EngineUnusable
from services.worker.engines.torch.spec import TorchSpec

READ_BYTES = 65_536
MAX_ERROR_CHARS = 500
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>

Make = Callable[[wire.EngineSpec], Engine]
T = TypeVar("T")


class Channel:
    """The child's end of the socket. Two threads write, one reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()

    def send(self, answer: wire.Answer) -> None:
        data = wire.frame(answer)
        try:
            with self._writing:
                self._connection.sendall(data)
        except ConnectionError:
            exit_now()

    def read(self, hand_on: Callable[[wire.Question], None]) -> None:
        """Pass on each message until the other end is closed."""
        frames, decoder = wire.Frames(), msgspec.msgpack.Decoder(wire.Question)
        with contextlib.suppress(ConnectionError):
            while data := self._connection.recv(READ_BYTES):
                for body in frames.feed(data):
                    hand_on(wire.unpack(decoder, body))


class PromptPreparer:
    """Turns requests into sequences, one at a time, and keeps those that are not admitted yet."""

    def __init__(self, engine: Engine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._decoder = msgspec.msgpack.Decoder(GenerateRequest)
        self._prepared: dict[int, Sequence] = {}

    def serve(self, questions: SimpleQueue[wire.Prepare | wire.Forget]) -> None:
        while True:
            question = questions.get()
            if isinstance(question, wire.Forget):
                self.forget(question.handle)
            else:
                self._channel.send(self._answer(question))

    def take(self, handle: int) -> Sequence:
        """Remove and return a prepared sequence, to admit it. Called by the main thread."""
        return self._prepared.pop(handle)

    def forget(self, handle: int) -> None:
        """Drop a prepared sequence. Unknown handles are ignored."""
        self._prepared.pop(handle, None)

    def _answer(self, question: wire.Prepare) -> wire.Answer:
        try:
            sequence = self._engine.prepare(self._decoder.decode(question.request))
        except BadInput as bad:
            return wire.Rejected(question.number, bad.message, bad.param, bad.status, bad.code)
        except Exception as error:
            report("the engine failed to prepare a request", error)
            return wire.StepFailed(question.number, describe_error(error))
        self._prepared[question.number] = sequence
        return wire.Prepared(question.number, sequence.prompt_tokens, sequence.unread_tokens, sequence.max_tokens)


class Stepper:
    """Applies the worker's decisions, computes, and reports the results by handle."""

    def __init__(self, engine: Engine, preparer: PromptPreparer) -> None:
        self._engine = engine
        self._preparer = preparer
        self._running: dict[int, Sequence] = {}
        self._handles: dict[Sequence, int] = {}
        self._reading: dict[int, Sequence] = {}

    def step(self, request: wire.StepRequest) -> wire.Answer:
        """Drop, admit, then compute one step. Ends the process if the device has failed."""
        try:
            self._drop(request.drops)
            lost = [(handle, why) for handle, deadline in request.admits if (why := self._admit(handle, deadline))]
            step = self._engine.step() if self._running else Step(0.0, 0, 0)
            return self._step_result(request.number, step, lost)
        except EngineDied as error:
            report("the engine process ended during a step", error)
            exit_now(os.EX_SOFTWARE)
        except Exception as error:
            report("the engine failed in a step", error)
            return wire.StepFailed(request.number, describe_error(error))

    def free(self, free: wire.Free) -> wire.Answer:
        try:
            self._drop(free.drops)
            return wire.Freed(free.number, state_of(self._engine))
        except Exception as error:
            report("the engine failed to drop a sequence", error)
            return wire.StepFailed(free.number, describe_error(error))

    def _drop(self, handles: list[int]) -> None:
        for handle in handles:
            sequence = self._left(handle)
            if sequence is not None:
                self._engine.drop(sequence)
            else:  # it finished before the drop arrived, or its admission was never reached
                self._preparer.forget(handle)

    def _admit(self, handle: int, deadline: float) -> str:
        """Why the engine refused the sequence; empty if it was admitted. Rare, since the worker checks slots and
        memory.
        """
        sequence = self._preparer.take(handle)
        sequence.deadline = deadline
        try:
            self._engine.admit(sequence)
        except Exception as error:
            report("the engine failed to admit a sequence", error)
            return describe_error(error)
        self._running[handle] = sequence
        self._handles[sequence] = handle
        if sequence.unread_tokens:
            self._reading[handle] = sequence
        return ""

    def _left(self, handle: int) -> Sequence | None:
        self._reading.pop(handle, None)
        sequence = self._running.pop(handle, None)
        if sequence is not None:
            del self._handles[sequence]
        return sequence

    def _step_result(self, number: int, step: Step, lost: list[tuple[int, str]]) -> wire.StepResult:
        handles = self._handles
        tokens = [(handles[sequence], text, sequence.completion_tokens) for sequence, text in step.tokens]
        finished = [(handles[sequence], reason, sequence.completion_tokens) for sequence, reason in step.finished]
        lost += [(handles[sequence], why) for sequence, why in step.lost]
        reading = [(handle, sequence.unread_tokens) for handle, sequence in self._reading.items()]
        for handle, unread_tokens in reading:
            if not unread_tokens:
                del self._reading[handle]
        for gone in (finished, lost):
            for handle, *_ in gone:
                self._left(handle)
        return wire.StepResult(
            number, step.duration_s, step.batch_size, step.prefill_tokens, tokens, reading, finished, lost,
            state_of(self._engine),
        )  # fmt: skip


def serve(connection: socket.socket, make: Make) -> None:
    """The process's main function. It does not return."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_worker()
    connection.set_inheritable(False)
    channel = Channel(connection)
    to_main: SimpleQueue[wire.Start | wire.StepRequest | wire.Free | wire.Stop] = SimpleQueue()
    to_preparer: SimpleQueue[wire.Prepare | wire.Forget] = SimpleQueue()

    def hand_on(question: wire.Question) -> None:
        if isinstance(question, wire.Prepare | wire.Forget):
            to_preparer.put(question)
        else:
            to_main.put(question)

    start_thread("reader", channel.read, hand_on)
    start = to_main.get()
    assert isinstance(start, wire.Start)
    engine = make_engine_or_exit(start, make, channel)
    gc.collect()
    gc.freeze()  # no collection scans libraries and weights again, which would pause between tokens
    preparer = PromptPreparer(engine, channel)
    start_thread("preparer", preparer.serve, to_preparer)
    stepper = Stepper(engine, preparer)
    channel.send(ready(start.number, engine))
    while True:
        question = to_main.get()
        match question:
            case wire.StepRequest():
                channel.send(stepper.step(question))
            case wire.Free():
                channel.send(stepper.free(question))
            case wire.Stop():
                close(engine)
                exit_now()
            case wire.Start():
                raise AssertionError("one process, one engine")
            case _:
                assert_never(question)


def start_thread(name: str, run: Callable[[T], None], argument: T) -> None:
    """Run `run` on a thread. The process cannot work without the thread, so it exits when the thread ends."""

    def target() -> None:
        try:
            run(argument)
        except Exception as error:
            report(f"the {name} of the engine's process failed", error)
        exit_now()

    threading.Thread(target=target, name=name, daemon=True).start()


def end_with_worker() -> None:
    """Let the kernel kill this process when the worker is gone (Linux): the reader cannot, if the process is stopped or
    a driver holds the interpreter's lock.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def make_engine_or_exit(start: wire.Start, make: Make, channel: Channel) -> Engine:
    """The engine. If it cannot be created, reports why and exits."""
    try:
        return make(start.spec)
    except EngineUnusable as unusable:
        message = str(unusable)
    except ModuleNotFoundError as missing:
        message = f"the engine needs {missing.name}, which is not installed: pip install 'weir[torch]'"
    except Exception as error:
        report("the engine could not be created", error)
        message = f"the engine could not be created: {describe_error(error)}"
    channel.send(wire.Unusable(start.number, message))
    exit_now()


def make_engine(spec: wire.EngineSpec) -> Engine:
    """The engine that `spec` describes. The only place in the worker that imports torch."""
    match spec:
        case wire.Simulated():
            return _simulated(spec)
        case wire.Torch():
            return _torch(spec.spec)
        case _:
            assert_never(spec)


def _simulated(spec: wire.Simulated) -> Engine:
    from services.worker.engines.simulated import LatencyModel, SimulatedEngine

    return SimulatedEngine(
        model=spec.model,
        slots=spec.slots,
        kv_tokens=spec.kv_tokens,
        context_tokens=spec.context_tokens,
        prefill_chunk_tokens=spec.prefill_chunk_tokens,
        latency=LatencyModel(spec.step_ms, spec.per_sequence_ms, spec.prefill_ms_per_token, spec.jitter),
        chance=random.Random(spec.seed),
    )


def _torch(spec: TorchSpec) -> Engine:
    from services.worker.engines.torch.loading import load

    return load(spec)


def ready(number: int, engine: Engine) -> wire.Ready:
    return wire.Ready(
        number, engine.name, engine.model, engine.context_tokens, engine.expected, state_of(engine), repr(engine)
    )


def state_of(engine: Engine) -> wire.EngineState:
    return wire.EngineState(engine.running, engine.kv_usage, engine.slots, engine.kv_tokens, engine.memory)


def close(engine: Engine) -> None:
    try:
        engine.close()
    except Exception as error:
        report("the engine failed to close", error)


def describe_error(error: Exception) -> str:
    """The error's type and message, for the worker only: the message might quote a prompt."""
    return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]


def report(what: str, error: Exception) -> None:
    """Log the error's type and traceback, without its message."""
    trace = "".join(traceback.format_tb(error.__traceback__))
    sys.stderr.write(f"{what}: {type(error).__name__}\n{trace}")
    sys.stderr.flush()


def exit_now(status: int = 0) -> NoReturn:
    """Exit at once, from any thread, even while another computes.

    Nothing is flushed: a standard stream that is not read could block the process.
    """
    os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), make_engine)
