"""Mutation by chance, seeded: the same inputs each time. Without feedback of coverage, and with nothing to install."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

MAX_BYTES = 4096
PIECES = (
    b"\r\n", b"\n\n", b":", b",", b'"', b"\\", b"{", b"}", b"[", b"]", b"=", b";", b"&", b"%", b"\x00", b"\xff",
    b"\xed\xa0\x80",
    b"0", b"9" * 20, b"-", b"1e999", b"\\u0000", b"\\ud800", b"content-length: 1\r\n",
    b"transfer-encoding: chunked\r\n",
    b"data: ", b"[DONE]", b"&a ", b"*a", b"<<: ", b"!!python/object", b"<p>", b"wait=", b"\xdc\xff\xff\xff\xff",
)  # fmt: skip


def mutants(seeds: Sequence[bytes], chance: random.Random) -> Iterator[bytes]:
    """Without end: the seeds themselves, then what becomes of them."""
    yield from seeds
    while True:
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 8)):
            _change(data, chance)
        yield bytes(data[:MAX_BYTES])


def _change(data: bytearray, chance: random.Random) -> None:
    at = chance.randint(0, len(data))
    length = chance.choice((1, 2, 4, 16, 64))
    match chance.randrange(6):
        case 0:
            data[at:at] = chance.choice(PIECES)
        case 1:
            del data[at : at + length]
        case 2:
            data[at:at] = data[at : at + length] * chance.choice((1, 2, 30))
        case 3:
            data[at : at + 1] = bytes([chance.randrange(256)])
        case 4:
            data[at:at] = chance.choice(PIECES) * chance.choice((2, 70, 300))
        case _:
            other = chance.randint(0, len(data))
            data[at:at] = data[other : other + length]
