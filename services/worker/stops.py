"""Stop strings over a stream of tokens: never emitted, not even in part, wherever the token borders fall.

Text that might be the beginning of a stop string is held back until the next token settles it. The cut is at the stop
string that is complete first, whatever the tokens were, so the answer is the same for every tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Feed it token texts; it returns what may be shown. After `stopped` nothing more may be fed."""

    __slots__ = ("_held", "_stops", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop every answer before it begins")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What this token makes certain; may be empty. Sets `stopped` when a stop string is complete."""
        if not self._stops:
            return text
        text = self._held + text
        cut = self._first_complete(text)
        if cut is not None:
            self.stopped = True
            self._held = ""
            return text[:cut]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once it is certain that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> int | None:
        """Where the stop string begins that ends first; of two that end together, the longer one."""
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
