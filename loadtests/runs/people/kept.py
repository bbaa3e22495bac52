"""What has been played so far, in a file: a run that is interrupted goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from loadtests.runs.people.watching import Sample


class Trouble(msgspec.Struct, frozen=True):
    """From when to when the scenario itself had slowed workers."""

    from_s: float
    until_s: float


class Played(msgspec.Struct, frozen=True):
    """One scenario, as Locust counted it and as the router told it. Times in ms; None: nothing was answered."""

    scenario: str
    asks: str
    users: int
    seconds: float
    requests: int
    served: int
    degraded: int
    refused: int
    left: int
    lost: int
    failed: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    began_at: float
    """Seconds since 1970."""
    broken: tuple[Trouble, ...] = ()
    samples: tuple[Sample, ...] = ()
    machine: str = ""


class Book(msgspec.Struct):
    """All of them. `what` says which code was played, against whom and for how long: others are not mixed with them."""

    what: str
    played: dict[str, Played] = {}


class Kept:
    """The book, and its file beside it: written whole after every scenario, so that a crash loses one."""

    def __init__(self, path: Path, what: str, say: Callable[[str], None], *, forget: bool = False) -> None:
        self._path = path
        self.book = Book(what)
        if forget or not path.exists():
            return
        try:
            before = msgspec.json.decode(path.read_bytes(), type=Book)
        except (OSError, msgspec.MsgspecError):
            say(f"{path} cannot be read: all is played again.")
            return
        if before.what != what:
            say(f"{path} holds scenarios of other code, or of another host or length: they are not used.")
            return
        self.book = before

    def keep(self, played: Played) -> None:
        """Write it down now."""
        self.book.played[played.scenario] = played
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self.book), indent=1) + b"\n")
        beside.replace(self._path)
