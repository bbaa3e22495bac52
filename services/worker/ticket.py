"""One ticket per request, finished once.

A request's resources are held by its ticket: slot, queue place, timer and id. `finish` releases all of them, in reverse
order, exactly once, whichever caller is first: answer, deadline, disconnect or drain. A leak of one slot a day becomes
a permanent 429 after a week (litellm #27955, ray #44644), so no resource may be held outside a ticket.
"""

from __future__ import annotations

from collections.abc import Callable

from services.core.outcome import Outcome

Release = Callable[[], None]


class Ticket:
    """A request's resources and its end. `second_finishes` counts calls of `finish` after the first.

    `strict` makes a second call an error, for tests. In production an answer, a deadline and a disconnect may race, so
    a second call is a counted no-op.
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
        """Attach a resource's release function. If the ticket has ended, it is called at once."""
        if self.outcome is not None:
            release()
            return
        self._holds.append(release)

    def release(self, release: Release) -> None:
        """Release one resource early. Raises ValueError if the ticket does not hold it."""
        self._holds.remove(release)
        release()

    def finish(self, outcome: Outcome) -> bool:
        """End the request. True for the first call; later calls change nothing, are counted, and return False."""
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
