"""One ticket per request, settled once.

Everything a request holds hangs on its ticket: the place under the cap, the worker's slot, later its queue place and
its charge. `finish` gives all of it back, in reverse order of taking, exactly once, whoever calls first: the answer,
the deadline, the client that left, or the drain. A leak of one place a day turns into a permanent 429 after a week
(litellm #27955, ray #44644), which is why no hold may exist outside a ticket.
"""

from __future__ import annotations

from collections.abc import Callable

from services.core.outcome import Outcome

Release = Callable[[], None]


class Ticket:
    """A request's holds and its one ending. `second_finishes` counts calls after the first.

    `strict` makes a second call an error, for tests of what must end once by construction. In production, where an
    answer, a deadline and a client that leaves may race, it is a counted no-op.
    """

    __slots__ = ("_holds", "id", "outcome", "second_finishes", "started_at", "strict")

    def __init__(self, id: str, started_at: float, *, strict: bool = False) -> None:
        self.id = id
        self.started_at = started_at
        self.outcome: Outcome | None = None
        self.second_finishes = 0
        self.strict = strict
        self._holds: list[Release] = []

    def hold(self, release: Release) -> None:
        """Hang a hold on the ticket. On a ticket that has ended it is released at once: it came too late."""
        if self.outcome is not None:
            release()
            return
        self._holds.append(release)

    def release(self, release: Release) -> None:
        """Give one hold back early (a failed attempt's slot). A hold that is not there raises ValueError."""
        self._holds.remove(release)
        release()

    def finish(self, outcome: Outcome) -> bool:
        """End the request. True the first time; later calls change nothing, are counted, and return False."""
        if self.outcome is not None:
            self.second_finishes += 1
            if self.strict:
                raise RuntimeError(f"{self!r} was finished again, as {outcome}")
            return False
        self.outcome = outcome
        while self._holds:
            self._holds.pop()()
        return True

    def __repr__(self) -> str:
        state = str(self.outcome) if self.outcome else f"open, {len(self._holds)} holds"
        return f"<Ticket {self.id} {state}>"
