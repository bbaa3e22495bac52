"""The embedding model in a process of its own.

In a thread it would share the interpreter lock with the event loop. A pass takes that lock some hundred times; under a
flood of rejected requests passes were measured to take three times as long, and no answer came in time.

    parent -> child   length, msgpack list of texts
    child -> parent   length, msgpack `ModelHello`; then for each list an `EncodedVectors` or, as a string, a fault

The child ends with its standard input or the service. It has its own session, so that Ctrl-C reaches only the service,
which may still finish answers. It is confined (confine.py) but has no limit on processor time or memory: it lives as
long as the service, and a model may be large.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from services.retrieval.confine import ENVIRONMENT, command
from services.retrieval.minilm import DIMENSIONS, Floats, MiniLM, ModelUnusable

LENGTH_BYTES = 4
STOP_WITHIN_S = 1.0
LIMITS = {"NOFILE": 256, "CORE": 0}  # no FSIZE: its standard error may be a log file


class ModelHello(msgspec.Struct, frozen=True, array_like=True):
    """The model is loaded, or `fault` says why not. `tokenizer` is the digest of its tokenizer.

    `confined` names what the process could give up (confine.py).
    """

    name: str = ""
    fingerprint: str = ""
    fault: str = ""
    tokenizer: str = ""
    confined: list[str] = []


class EncodedVectors(msgspec.Struct, frozen=True, array_like=True):
    """The float32 vectors, one after the other, and the number of tokens of each text."""

    data: bytes
    tokens: list[int]


class ModelFailed(Exception):
    """The model could not compute these texts; the message says why."""


class ModelProcess:
    """Sends the child one list of texts at a time. After the child has died, the next call starts a new one."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        self._command = command(__name__, [str(folder.resolve()), str(threads)], reads=folder, limits=LIMITS)
        self._child: asyncio.subprocess.Process | None = None

    async def load(self) -> ModelHello:
        """Start the child and wait until the model is loaded. Raises ModelUnusable."""
        self._child = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env=ENVIRONMENT, cwd="/", start_new_session=True,
        )  # fmt: skip
        try:
            hello = msgspec.msgpack.decode(await self._read(), type=ModelHello)
        except BaseException:
            await self.stop()
            raise
        if hello.fault:
            await self.stop()
            raise ModelUnusable(hello.fault)
        return hello

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]:
        """The unit vector and the number of tokens of each text. Raises ModelFailed."""
        if self._child is None:
            await self.load()
        try:
            answer = await self._ask(msgspec.msgpack.encode(texts))
        except BaseException:  # a late answer must not be taken for the next one's
            await self.stop()
            raise
        if isinstance(answer, str):
            raise ModelFailed(answer)
        vectors = np.frombuffer(answer.data, np.float32).reshape(-1, DIMENSIONS)
        return list(zip(vectors, answer.tokens, strict=True))

    async def stop(self) -> None:
        """Kill the child: it has no state to lose."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await asyncio.wait({asyncio.ensure_future(child.wait())}, timeout=STOP_WITHIN_S)

    async def _ask(self, question: bytes) -> EncodedVectors | str:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(_frame(question))
            await self._child.stdin.drain()
        except OSError as error:
            raise ModelFailed(f"the model process has ended: {error}") from None
        return msgspec.msgpack.decode(await self._read(), type=EncodedVectors | str)

    async def _read(self) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        try:
            length = int.from_bytes(await self._child.stdout.readexactly(LENGTH_BYTES), "big")
            return await self._child.stdout.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ModelFailed("the model process has ended") from None


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def serve(folder: Path, threads: int, questions: BinaryIO, answers: BinaryIO, confined: Sequence[str] = ()) -> None:
    """The child: load the model, then answer until standard input ends."""
    try:
        model = MiniLM(folder, threads=threads)
    except (ModelUnusable, OSError, ValueError) as error:
        _write(answers, ModelHello(fault=str(error)))
        return
    _write(answers, ModelHello(model.name, model.fingerprint, tokenizer=model.tokenizer, confined=list(confined)))
    while question := _read_frame(questions):
        _write(answers, _answer(model, msgspec.msgpack.decode(question, type=list[str])))


def _answer(model: MiniLM, texts: list[str]) -> EncodedVectors | str:
    try:
        ids = [model.tokenize(text) for text in texts]
        return EncodedVectors(model.embed(ids).tobytes(), [len(each) for each in ids])
    except Exception as error:  # fails these texts only
        return f"{type(error).__name__}: {error}"


def _read_frame(stream: BinaryIO) -> bytes:
    """The next frame; empty at the end of the stream."""
    head = stream.read(LENGTH_BYTES)
    return stream.read(int.from_bytes(head, "big")) if len(head) == LENGTH_BYTES else b""


def _write(stream: BinaryIO, answer: object) -> None:
    stream.write(_frame(msgspec.msgpack.encode(answer)))
    stream.flush()


def main(arguments: Sequence[str], confined: Sequence[str]) -> None:
    """The child, after it was confined."""
    folder, threads = arguments
    with contextlib.suppress(BrokenPipeError):
        serve(Path(folder), int(threads), sys.stdin.buffer, sys.stdout.buffer, confined)
