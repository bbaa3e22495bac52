"""What both kinds of workers have: places, slots, a line for looked-ahead requests, and someone to report to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from loadtests.scenarios.model import WorkerGroup
from loadtests.simulator.job import Job


class Reports(Protocol):
    """Whom a worker tells what happened, as it happens, and who wakes it."""

    def schedule(self, when: float, call: Callable[[float, Any], None], what: Any) -> None:
        """Have `call(when, what)` made."""
        ...

    def began(self, now: float, job: Job) -> None:
        """It has a slot."""
        ...

    def first_token(self, now: float, job: Job) -> None:
        """The first token of its answer has come."""
        ...

    def completed(self, now: float, job: Job) -> None:
        """Its slot is free: answered or stopped."""
        ...

    def lost(self, now: float, job: Job) -> None:
        """It came to a worker that is down."""
        ...


class Worker:
    """A worker as the router knows it (places, what is in flight), and the line before its slots."""

    __slots__ = ("down", "factor", "half_trip_s", "inflight", "line", "outstanding", "places", "reports", "slots")

    def __init__(self, group: WorkerGroup, reports: Reports) -> None:
        self.reports = reports
        self.slots = group.slots
        self.places = group.slots + group.lookahead
        self.half_trip_s = group.round_trip_ms / 2000.0
        self.inflight = 0
        self.outstanding = 0
        """Tokens asked of it at most."""
        self.line: deque[Job] = deque()
        self.down = False
        self.factor = 1.0
        """How many times as long everything takes."""

    def give(self, now: float, job: Job) -> None:
        """Run it when a slot is free: at once, or from the line."""
        raise NotImplementedError

    def stop(self, now: float, job: Job) -> None:
        """Abandon it; `completed` follows when its slot is free. Nothing happens if it is over."""
        raise NotImplementedError

    def fail(self, now: float) -> list[Job]:
        """Lose everything that runs or stands in the line."""
        raise NotImplementedError

    def slow(self, now: float, factor: float) -> None:
        """What begins from now on takes so many times as long."""
        self.factor = factor

    def generated(self, now: float, job: Job) -> int:
        """Tokens of its answer so far."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'down' if self.down else 'up'} {self.inflight}/{self.places}>"
