"""The base of both kinds of workers: slots, a queue for lookahead, and callbacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from loadtests.scenarios.model import WorkerGroup
from loadtests.simulator.job import Job


class Reports(Protocol):
    """A worker's callbacks and its clock."""

    def schedule(self, when: float, call: Callable[[float, Any], None], what: Any) -> None:
        """Call `call(when, what)` at `when`."""
        ...

    def began(self, now: float, job: Job) -> None:
        """The job got a slot."""
        ...

    def first_token(self, now: float, job: Job) -> None:
        """The job's first completion token."""
        ...

    def completed(self, now: float, job: Job) -> None:
        """The job was answered or stopped, and its slot is free."""
        ...

    def lost(self, now: float, job: Job) -> None:
        """The job reached a worker that is down."""
        ...


class Worker:
    """The router's view of a worker (places, jobs in flight), and the queue before its slots."""

    __slots__ = ("down", "factor", "half_trip_s", "inflight", "line", "outstanding", "places", "reports", "slots")

    def __init__(self, group: WorkerGroup, reports: Reports) -> None:
        self.reports = reports
        self.slots = group.slots
        self.places = group.slots + group.lookahead
        self.half_trip_s = group.round_trip_ms / 2000.0
        self.inflight = 0
        self.outstanding = 0
        """Tokens of the jobs in flight, with answers at their granted length."""
        self.line: deque[Job] = deque()
        self.down = False
        self.factor = 1.0
        """Slowdown; 1 is normal speed."""

    def give(self, now: float, job: Job) -> None:
        """Run the job now, or queue it until a slot is free."""
        raise NotImplementedError

    def stop(self, now: float, job: Job) -> None:
        """Stop the job; `completed` follows when its slot is free. No effect on a job that has ended."""
        raise NotImplementedError

    def fail(self, now: float) -> list[Job]:
        """Drop all running and queued jobs. Returns them."""
        raise NotImplementedError

    def slow(self, now: float, factor: float) -> None:
        """Work that begins from now on takes `factor` times as long."""
        self.factor = factor

    def generated(self, now: float, job: Job) -> int:
        """Completion tokens so far."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'down' if self.down else 'up'} {self.inflight}/{self.places}>"
