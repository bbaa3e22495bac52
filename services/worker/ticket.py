"""One ticket per request: it holds the request's resources and releases all of them exactly once.

A leak of one slot a day becomes a permanent 429 after a week (litellm #27955, ray #44644), so no resource may be held
outside a ticket.
"""

from __future__ import annotations

from collections.abc import Callable

from services.core.outcome import Outcome

Release = Callable[[], None]


class Ticket:
    """A request's resources (slot, queue place, timer, id) and its end.

    `strict` makes a second `finish` an error, for tests. In production answer, deadline and disconnect may race, so a
    second call is only counted, in `second_finishes`.
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
        """End the request and release its resources, the last first. False if it has ended before."""
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
