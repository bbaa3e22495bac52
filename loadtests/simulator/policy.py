"""The interface of a scheduling policy. All times are simulated seconds; no call blocks.

The simulation calls `next` only while a place is free and jobs wait, `finish` exactly once for each started job, and
`leave` only for waiting jobs. A policy that `cancels` must not start a job after its `leave`; the simulation stops its
running jobs when the client leaves or the deadline passes. Other policies may start jobs whose client has left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from loadtests.simulator.job import Job
from services.core.outcome import Outcome


class Refusal(Protocol):
    """Outcome and retry hint of a rejection. The core's `Rejection` is one."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def retry_hint_s(self) -> float | None: ...


class No(NamedTuple):
    outcome: Outcome
    retry_hint_s: float | None = None


class Policy:
    """Scheduling and admission. By default it expires nothing, predicts nothing and never degrades."""

    cancels = False
    """Whether jobs end when their client leaves or their deadline passes."""
    quantiles: Sequence[float] = ()
    """The quantiles of the wait that it predicts at admission."""
    context_shares: Sequence[float] = (1.0,)
    """Share of the retrieved context that is sent, by degradation level."""

    @property
    def level_changes(self) -> int:
        """Changes of degradation levels so far."""
        return 0

    def offer(self, now: float, job: Job) -> Refusal | None:
        """None for an admitted job."""
        raise NotImplementedError

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        """The job to start now, and the jobs dropped before it."""
        raise NotImplementedError

    def expire(self, now: float) -> Sequence[Job]:
        """Drop jobs that can no longer be on time. Called at `wakes_at`."""
        return ()

    def wakes_at(self) -> float:
        """When to call `expire` next; infinity for never."""
        return math.inf

    def leave(self, now: float, job: Job) -> None:
        """The client left, or the deadline passed, while the job waited."""

    def first_token(self, now: float, job: Job) -> None:
        """The job's first completion token arrived."""

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        """The job's place is free."""

    def capacity(self, now: float, slots: int) -> None:
        """The number of places changed."""

    def predicted(self, job: Job) -> Sequence[float]:
        """The wait predicted at admission, at each of `quantiles`, in seconds."""
        return ()
