"""A tenant's document, parsed and chunked in a process of its own, which ends with it.

A document may be hostile: a PDF that unpacks to gigabytes, markup that keeps a parser busy for hours, bytes that
exploit a parser written in C. So the process is confined (confine.py), and sees no secret and no other document. It has
`within_s` seconds, `LIMITS`, `MAX_ANSWER_BYTES` of output and a low priority; it costs a fraction of a second.

    stdin: msgpack `ParseRequest`    stdout: msgpack `PreparedDocument`, or as a string why it cannot be read
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
    """A document. The suffix of `name` gives its kind; `tokenizer` is the digest of the model's tokenizer."""

    name: str
    data: bytes
    tokenizer: str
    chunk_tokens: int
    overlap_tokens: int


async def prepare(
    model: Path, request: ParseRequest, *, within_s: float = PARSE_WITHIN_S, limits: Mapping[str, int] = LIMITS
) -> PreparedDocument:
    """The chunks of the document. Raises UnreadableDocument, also for one that exceeds a limit of its process."""
    child = await asyncio.create_subprocess_exec(
        *_command_line(model, limits),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=ENVIRONMENT, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            parsed = await _exchange(child, msgspec.msgpack.encode(request))
    except TimeoutError:
        raise UnreadableDocument(f"cannot be parsed within {within_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await asyncio.shield(child.wait())
    try:
        prepared = msgspec.msgpack.decode(parsed, type=PreparedDocument | str)
    except msgspec.DecodeError:  # empty or cut off
        raise UnreadableDocument("cannot be parsed: its parser failed") from None
    if isinstance(prepared, str):
        raise UnreadableDocument(prepared)
    return prepared


def _command_line(model: Path, limits: Mapping[str, int]) -> list[str]:
    return command(__name__, [str(model.resolve())], reads=model, limits=limits)


async def _exchange(child: asyncio.subprocess.Process, question: bytes) -> bytes:
    """The answer; empty if it exceeds `MAX_ANSWER_BYTES`. The child may end before it has read the whole document."""
    assert child.stdin is not None
    assert child.stdout is not None
    answer = bytearray()
    writing = asyncio.ensure_future(_put(child.stdin, question))
    try:
        while piece := await child.stdout.read(1 << 16):
            answer += piece
            if len(answer) > MAX_ANSWER_BYTES:
                return b""
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return bytes(answer)


async def _put(stream: asyncio.StreamWriter, question: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(question)
        await stream.drain()
        stream.close()


def answer(model: Path, question: bytes) -> PreparedDocument | str:
    from tokenizers import Tokenizer

    request = msgspec.msgpack.decode(question, type=ParseRequest)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    preparer = DocumentPreparer(count_tokens, request.tokenizer, request.chunk_tokens, request.overlap_tokens)
    try:
        return preparer.prepare(request.name, request.data)
    except UnreadableDocument as error:
        return str(error)


def main(arguments: Sequence[str], _: Sequence[str]) -> None:
    """The child, after it was confined."""
    os.nice(NICENESS)
    try:
        parsed: PreparedDocument | str = answer(Path(arguments[0]), sys.stdin.buffer.read())
    except Exception as error:  # its message may quote the document, its name does not
        parsed = f"cannot be parsed: its parser failed ({type(error).__name__})"
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.msgpack.encode(parsed))
        sys.stdout.buffer.flush()
