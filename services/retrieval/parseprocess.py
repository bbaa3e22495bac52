"""Somebody's document, parsed and chunked in a process of its own: `python -m services.retrieval.parseprocess FOLDER`.

A document that a tenant sends may be made to harm: a PDF that unfolds into gigabytes, markup that takes a parser hours.
So it is read where that harms nobody: in a process with a bound on memory, at the lowest priority, that is killed when
its time is up, and that has read nothing of another tenant's. It costs a part of a second for each document.

    stdin: msgpack `Ask`    stdout: msgpack `Prepared`, or as a string why the document cannot be read
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from pathlib import Path

import msgspec

from services.retrieval.documents import Unreadable
from services.retrieval.preparing import Prepared, Preparer

PARSE_WITHIN_S = 10.0
MEMORY_BYTES = 1 << 30
NICENESS = 10


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A document: the end of its name says of what kind it is; `tokenizer` is the digest of the model's."""

    name: str
    data: bytes
    tokenizer: str
    chunk_tokens: int
    overlap_tokens: int


async def prepare(model: Path, ask: Ask, *, within_s: float = PARSE_WITHIN_S) -> Prepared:
    """What it becomes. Raises Unreadable, for what takes too long or too much memory as well."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(model),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            answer, _ = await child.communicate(msgspec.msgpack.encode(ask))
    except TimeoutError:
        raise Unreadable(f"cannot be parsed within {within_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await asyncio.shield(child.wait())
    if not answer:
        raise Unreadable("cannot be parsed: its parser failed")
    prepared = msgspec.msgpack.decode(answer, type=Prepared | str)
    if isinstance(prepared, str):
        raise Unreadable(prepared)
    return prepared


def answer(model: Path, question: bytes) -> Prepared | str:
    """The child's work."""
    from tokenizers import Tokenizer

    ask = msgspec.msgpack.decode(question, type=Ask)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    preparer = Preparer(count_tokens, ask.tokenizer, ask.chunk_tokens, ask.overlap_tokens)
    try:
        return preparer.prepare(ask.name, ask.data)
    except Unreadable as error:
        return str(error)


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    said = answer(Path(sys.argv[1]), sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.msgpack.encode(said))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
