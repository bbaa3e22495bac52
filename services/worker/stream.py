"""One answer between the engine loop and its reader, in a bounded buffer.

The loop never waits for a reader. If the buffer is full, `put` returns False and the loop drops the sequence: a slow
reader must neither stall the batch nor fill the memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.contracts.generate import Done
from services.core.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Dropped:
    """The end of an answer that is not complete."""

    outcome: Outcome
    message: str
    reason: str = ""
    """A code that is more specific than the outcome's."""

    @property
    def code(self) -> str:
        return self.reason or self.outcome.value


class AnswerStream:
    """Token texts in order, then one ending. For a single reader.

    With `whole` the reader is woken only by the ending. `capacity_tokens` must then hold every text: `max_tokens`, and
    one more for text that the stop strings held back.
    """

    __slots__ = ("_capacity_tokens", "_texts", "_waiter", "_whole", "ending")

    def __init__(self, *, capacity_tokens: int, whole: bool = False) -> None:
        if capacity_tokens < 1:
            raise ValueError(f"capacity_tokens must be at least 1, got {capacity_tokens}")
        self.ending: Done | Dropped | None = None
        self._capacity_tokens = capacity_tokens
        self._whole = whole
        self._texts: list[str] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, text: str) -> bool:
        """Add a token's text. False if the reader is `capacity_tokens` behind."""
        assert self.ending is None, f"{len(text)} characters after the end: {self!r}"
        if len(self._texts) >= self._capacity_tokens:
            return False
        self._texts.append(text)
        if not self._whole:
            self._wake()
        return True

    def end(self, ending: Done | Dropped) -> None:
        """Set the ending. Texts that were put before are still taken first."""
        assert self.ending is None, f"a second end, {type(ending).__name__}: {self!r}"
        self.ending = ending
        self._wake()

    async def take(self) -> list[str]:
        """The pending texts; waits until there are some. Empty: the stream is over, see `ending`."""
        if self.ending is None and (self._whole or not self._texts):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        texts, self._texts = self._texts, []
        return texts

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        state = "open" if self.ending is None else type(self.ending).__name__.lower()
        return f"<AnswerStream {state}, {len(self._texts)}/{self._capacity_tokens} unread>"
