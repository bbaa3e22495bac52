"""Cuts a stream of bytes into whole lines or events, in linear time however the network has split it."""

from __future__ import annotations


class Cut:
    """Returns everything up to the last separator. The caller bounds `waiting`, the bytes after it."""

    __slots__ = ("_buffer", "_overlap", "_separator")

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._overlap = len(separator) - 1
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        return len(self._buffer)

    def take(self, piece: bytes) -> bytes:
        """All that is complete, up to and including the last separator; may be empty."""
        buffer = self._buffer
        if not buffer and piece.endswith(self._separator):
            return piece  # whole events, as most servers send them: no copy
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
        """Return and clear the incomplete rest, at the end of the stream."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def __repr__(self) -> str:
        return f"<Cut, {len(self._buffer)} bytes wait>"
