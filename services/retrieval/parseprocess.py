"""A tenant's document, parsed and chunked in a process of its own, which ends with it.

A document may be made to harm: a PDF that unfolds into gigabytes, markup that takes a parser hours, bytes that use a
fault of a parser written in C. So a process reads it that can do little harm: it is confined before it reads anything
(see confine.py), it has no secret in its environment, and it sees no other tenant's document. What bounds it:

    `within_s` seconds of time, `LIMITS["CPU"]` seconds of processor time, `LIMITS["AS"]` bytes of memory,
    `MAX_ANSWER_BYTES` of answer, no file, no further process or thread, the lowest priority

It costs a part of a second for each document.

    stdin: msgpack `ParseRequest`    stdout: msgpack `PreparedDocument`, or as a string why the document cannot be read
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from services.retrieval.confine import ENVIRONMENT, command
from services.retrieval.documents import UnreadableDocument
from services.retrieval.preparing import DocumentPreparer, PreparedDocument

PARSE_WITHIN_S = 10.0
LIMITS = {"CPU": 12, "AS": 1 << 30, "FSIZE": 0, "NOFILE": 32, "NPROC": 1, "CORE": 0}  # see setrlimit(2)
MAX_ANSWER_BYTES = 64 << 20
NICENESS = 10


class ParseRequest(msgspec.Struct, frozen=True, array_like=True):
    """A document: the end of its name says of what kind it is; `tokenizer` is the digest of the model's."""

    name: str
    data: bytes
    tokenizer: str
    chunk_tokens: int
    overlap_tokens: int


async def prepare(
    model: Path, ask: ParseRequest, *, within_s: float = PARSE_WITHIN_S, limits: Mapping[str, int] = LIMITS
) -> PreparedDocument:
    """What the document becomes. Raises Unreadable, also for one that goes over a limit of its process."""
    child = await asyncio.create_subprocess_exec(
        *_words(model, limits),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=ENVIRONMENT, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            parsed = await _exchange(child, msgspec.msgpack.encode(ask))
    except TimeoutError:
        raise UnreadableDocument(f"cannot be parsed within {within_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await asyncio.shield(child.wait())
    try:
        prepared = msgspec.msgpack.decode(parsed, type=PreparedDocument | str)
    except msgspec.DecodeError:  # nothing, or not all of it
        raise UnreadableDocument("cannot be parsed: its parser failed") from None
    if isinstance(prepared, str):
        raise UnreadableDocument(prepared)
    return prepared


def _words(model: Path, limits: Mapping[str, int]) -> list[str]:
    return command(__name__, [str(model.resolve())], reads=model, limits=limits)


async def _exchange(child: asyncio.subprocess.Process, question: bytes) -> bytes:
    """What it answers, up to `MAX_ANSWER_BYTES`; empty where it says more. It may end before it has read all."""
    assert child.stdin is not None
    assert child.stdout is not None
    answer = bytearray()
    request = asyncio.ensure_future(_put(child.stdin, question))
    try:
        while piece := await child.stdout.read(1 << 16):
            answer += piece
            if len(answer) > MAX_ANSWER_BYTES:
                return b""
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    return bytes(answer)


async def _put(stream: asyncio.StreamWriter, question: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(question)
        await stream.drain()
        stream.close()


def answer(model: Path, question: bytes) -> PreparedDocument | str:
    """The child's work."""
    from tokenizers import Tokenizer

    ask = msgspec.msgpack.decode(question, type=ParseRequest)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    preparer = DocumentPreparer(count_tokens, ask.tokenizer, ask.chunk_tokens, ask.overlap_tokens)
    try:
        return preparer.prepare(ask.name, ask.data)
    except UnreadableDocument as error:
        return str(error)


def main(arguments: Sequence[str], _: Sequence[str]) -> None:
    """The child, once it is confined."""
    os.nice(NICENESS)
    try:
        parsed: PreparedDocument | str = answer(Path(arguments[0]), sys.stdin.buffer.read())
    except Exception as error:  # its words may quote the document, and its name says where to look
        parsed = f"cannot be parsed: its parser failed ({type(error).__name__})"
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.msgpack.encode(parsed))
        sys.stdout.buffer.flush()
