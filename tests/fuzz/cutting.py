"""Input for readers of streams: the same bytes whole, and in pieces that the first byte decides."""

from __future__ import annotations

import random


def cut(data: bytes) -> tuple[bytes, list[bytes]]:
    """The bytes after the first, and the same in pieces; the first byte seeds where they are cut."""
    rest = data[1:]
    chance = random.Random(data[0] if data else 0)
    most = chance.choice((1, 2, 7, 64))
    pieces, begin = [], 0
    while begin < len(rest):
        end = begin + chance.randint(1, most)
        pieces.append(rest[begin:end])
        begin = end
    return rest, pieces
