"""Stop strings over a token stream: not emitted, not even in part, wherever the tokens' boundaries fall.

Text that may begin a stop string is held back until the next token decides. Stop strings are untrusted input and may be
long, so matching is linear in the text (Knuth, Morris, Pratt: Fast pattern matching in strings, SIAM J. Comput. 6,
1977).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice


class _Match:
    """The length of one stop string's prefix that the text ends with."""

    __slots__ = ("_fallback", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._fallback = [0, 0]  # by matched length: the next shorter match; computed as needed

    def follow(self, letter: str) -> None:
        """Add a letter. Not called after the stop string is complete."""
        length = self._next(self.length, letter)
        if length > self.length > 0:  # possibly the first time at this length
            self._learn(length)
        self.length = length

    def _next(self, length: int, letter: str) -> int:
        stop, fallback = self.stop, self._fallback
        while length and stop[length] != letter:
            length = fallback[length]
        return length + (stop[length] == letter)

    def _learn(self, length: int) -> None:
        if length == len(self._fallback):
            self._fallback.append(self._next(self._fallback[length - 1], self.stop[length - 1]))


class StopFilter:
    """Feed it the texts of tokens; it returns what may be shown. Nothing may be fed after `stopped`."""

    __slots__ = ("_held", "_matches", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop every answer before it begins")
        self._matches = tuple(map(_Match, stops))
        self._held: deque[str] = deque()
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that may be shown now; may be empty. Sets `stopped` when a stop string is complete."""
        if not self._matches:
            return text
        held = self._held
        for letter in text:
            held.append(letter)
            complete = 0
            for match in self._matches:
                match.follow(letter)
                if match.length == len(match.stop):
                    complete = max(complete, match.length)  # if two end here, the longer one is cut
            if complete:
                self.stopped = True
                shown = "".join(islice(held, len(held) - complete))
                held.clear()
                return shown
        keep = max(match.length for match in self._matches)
        return "".join(held.popleft() for _ in range(len(held) - keep))

    def flush(self) -> str:
        """Return the text that was held back. Called when no more text follows."""
        held = "".join(self._held)
        self._held.clear()
        return held
