"""A stream of bytes, cut into whole lines or events, in linear time however the network has cut it.

A peer that sends one byte at a time must not make us search, or copy, what has come before once more for each byte.
"""

from __future__ import annotations


class Cut:
    """Pieces go in, and what ends with the separator comes out. `waiting`: bytes that have no separator after them.

    It does not bound what waits: that is for its owner, after each piece.
    """

    __slots__ = ("_buffer", "_overlap", "_separator")

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._overlap = len(separator) - 1
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        return len(self._buffer)

    def take(self, piece: bytes) -> bytes:
        """All that is whole now, up to and with the last separator; may be empty."""
        buffer = self._buffer
        if not buffer and piece.endswith(self._separator):
            return piece  # whole events, as they come from most servers: no copy
        searched = max(0, len(buffer) - self._overlap)
        buffer += piece
        at = buffer.rfind(self._separator, searched)
        if at < 0:
            return b""
        end = at + len(self._separator)
        whole = bytes(memoryview(buffer)[:end])
        del buffer[:end]
        return whole

    def rest(self) -> bytes:
        """What waits, at the end of the stream; it waits no longer."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def __repr__(self) -> str:
        return f"<Cut, {len(self._buffer)} bytes wait>"
