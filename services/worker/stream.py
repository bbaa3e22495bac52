"""One answer on its way out: a bounded buffer between the batch and its reader.

The batch puts a token and never waits; the reader takes whatever has gathered and is woken once for all of it. When
the reader is so slow that the buffer is full, `put` says so and the batch drops the sequence: one client that does not
read must not stall the seven that do, and must not make the worker hold its answer in memory either.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from services.contracts.generate import Done
from services.core.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Dropped:
    """The ending of an answer that is not whole."""

    outcome: Outcome
    message: str
    reason: str = ""
    """A code that says more to the router than the outcome's own."""

    @property
    def code(self) -> str:
        """What goes over the wire."""
        return self.reason or self.outcome.value


class AnswerStream:
    """Token texts in order, then one ending. For a single reader.

    `whole` is for a reader that wants the answer in one piece: it is woken only by the ending, and the buffer is then
    bounded by the request's own `max_tokens`, which the caller passes as `capacity_tokens`.
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
        """Add a token's text; False when the reader is a whole buffer behind."""
        assert self.ending is None, f"{len(text)} characters after the end: {self!r}"
        if len(self._texts) >= self._capacity_tokens:
            return False
        self._texts.append(text)
        if not self._whole:
            self._wake()
        return True

    def end(self, ending: Done | Dropped) -> None:
        """Nothing follows. What was put before is still taken first."""
        assert self.ending is None, f"a second end, {type(ending).__name__}: {self!r}"
        self.ending = ending
        self._wake()

    async def take(self) -> list[str]:
        """What has gathered, waiting for something where nothing has. Empty: read `ending`, it is over."""
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
        return f"<Stream {state}, {len(self._texts)}/{self._capacity_tokens} unread>"
