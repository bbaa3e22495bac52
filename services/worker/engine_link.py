"""One engine process, from start to exit, and the socket to it. A restart makes a new link.

A request is answered by a message with its number, or by `Died`. When the socket or the process ends, the other has
STDERR_WAIT_S to follow, so that last messages and the exit status arrive; then the process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from services.worker.engine_wire import (
    Answer,
    BrokenFrame,
    Frames,
    Free,
    Prepare,
    Question,
    Start,
    StepRequest,
    frame,
    unpack,
)

STDERR_WAIT_S = 1.0
KILLED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Died:
    """The answer to every request that was open when the process ended."""

    why: str


class EngineLink(asyncio.Protocol):
    """Created by `spawn`. No method raises because the process is gone: any answer may be `Died`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.died: Died | None = None
        self._frames = Frames()
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self._open: dict[int, asyncio.Future[Answer | Died]] = {}
        self._broken = ""
        self._transport: asyncio.Transport | None = None
        self._disconnected = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._watcher = self._loop.create_task(self._watch(), name="engine-link")

    @classmethod
    async def spawn(cls, command: Sequence[str]) -> EngineLink:
        """Start the command with a file descriptor as its last argument. Raises OSError.

        It has its own session, so Ctrl-C reaches only the worker, which may have answers to finish.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        link = cls(process)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        except BaseException:
            link._disconnected.set()
            link.kill()
            ours.close()
            raise
        return link

    def ask(self, question: Start | Prepare | StepRequest | Free) -> asyncio.Future[Answer | Died]:
        """Send a message that is answered. Raises FrameTooLarge."""
        data = frame(question)
        answer: asyncio.Future[Answer | Died] = self._loop.create_future()
        if self.died is not None or self._broken:
            answer.set_result(self.died or Died(self._broken))
        else:
            self._open[question.number] = answer
            self._write(data)
        return answer

    def post(self, message: Question) -> None:
        """Send a message that is not answered."""
        if self.died is None:
            self._write(frame(message))

    def give_up(self, number: int) -> None:
        """Discard the answer with this number."""
        self._open.pop(number, None)

    def broken(self, how: str) -> None:
        """Kill the process; `how` becomes the reason in `died`."""
        self._broken = self._broken or how
        self.kill()

    def kill(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def ended_within(self, seconds: float) -> None:
        """Wait up to `seconds` for the process to end. Check `died` afterwards."""
        await asyncio.wait([self._watcher], timeout=seconds)

    async def end(self, why: str) -> None:
        """Kill the process and wait up to KILLED_WITHIN_S: a device call in the kernel can outlast the kill."""
        self.broken(why)
        await self.ended_within(KILLED_WITHIN_S)

    def when_dead(self, call: Callable[[EngineLink], None]) -> None:
        self._watcher.add_done_callback(lambda _: call(self))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._answered(unpack(self._decoder, body))
        except BrokenFrame as error:
            self._close()
            self.broken(f"it sent {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._disconnected.set()

    def _answered(self, answer: Answer) -> None:
        waiting = self._open.pop(answer.number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def _watch(self) -> None:
        exited = asyncio.ensure_future(self.process.wait())
        closed = asyncio.ensure_future(self._disconnected.wait())
        await asyncio.wait([exited, closed], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([exited, closed], timeout=STDERR_WAIT_S)
        self.kill()
        self._close()
        await exited
        await closed
        self.died = Died(self._broken or ended(exited.result()))
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_result(self.died)
        self._open.clear()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def __repr__(self) -> str:
        state = self.died.why if self.died else "alive"
        return f"<EngineLink to {self.process.pid}, {state}, {len(self._open)} open questions>"


def ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"its process was killed by {signal.Signals(-status).name}"
    return f"its process was killed by signal {-status}"
