"""Tests that have the machine to themselves, although the suite runs in several processes.

Every test stands on one floor while it runs: many may stand there together, or one that is marked `alone`. Who wants to
enter passes a turnstile and stays in it until there is room, so that nobody enters behind the back of one who waits for
the floor to be empty. Both are locks of the kernel (flock): they end with the process that holds them.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Floor:
    """A place for many or for one. `turnstile` and `floor` are any two files that all processes of the run can read."""

    def __init__(self, turnstile: Path, floor: Path) -> None:
        self._turnstile = turnstile
        self._floor = floor

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Wait for a place, for as long as it takes; nobody else has one while it is held `alone`."""
        with self._floor.open("rb") as floor:
            with self._turnstile.open("rb") as turnstile:
                fcntl.flock(turnstile, fcntl.LOCK_EX)
                fcntl.flock(floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.flock(floor, fcntl.LOCK_UN)  # closing would do, but for what a test has forked off and left
