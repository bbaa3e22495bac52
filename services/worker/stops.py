"""Stop strings over a stream of tokens: never emitted, not even in part, wherever the token borders fall.

Text that might be the beginning of a stop string is held back until the next token settles it. The cut is at the stop
string that is complete first, whatever the tokens were, so the answer is the same for every tokenizer.

Stop strings are a client's, and may be as long as its body. So they are matched letter by letter, and no letter is
looked at again (Knuth, Morris, Pratt: Fast pattern matching in strings, SIAM J. Comput. 6, 1977): the steps are
proportional to the text, whatever the stop strings are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice


class _Match:
    """How much of one stop string the text ends with."""

    __slots__ = ("_fallback", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._fallback = [0, 0]  # by length matched: the next shorter match; as far as was needed

    def follow(self, letter: str) -> None:
        """One more letter; not after the stop string is complete."""
        length = self._next(self.length, letter)
        if length > self.length > 0:  # the first time that it grows to here
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
    """Feed it token texts; it returns what may be shown. After `stopped` nothing more may be fed."""

    __slots__ = ("_held", "_matches", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop every answer before it begins")
        self._matches = tuple(map(_Match, stops))
        self._held: deque[str] = deque()
        self.stopped = False

    def feed(self, text: str) -> str:
        """What this token makes certain; may be empty. Sets `stopped` when a stop string is complete."""
        if not self._matches:
            return text
        held = self._held
        for letter in text:
            held.append(letter)
            complete = 0
            for match in self._matches:
                match.follow(letter)
                if match.length == len(match.stop):
                    complete = max(complete, match.length)  # of two that end together, the longer one
            if complete:
                self.stopped = True
                shown = "".join(islice(held, len(held) - complete))
                held.clear()
                return shown
        keep = max(match.length for match in self._matches)
        return "".join(held.popleft() for _ in range(len(held) - keep))

    def flush(self) -> str:
        """What was held back, once it is certain that no more text comes."""
        held = "".join(self._held)
        self._held.clear()
        return held
