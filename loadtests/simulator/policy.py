"""What a scheduling policy must answer for the simulator to drive it. All calls take `now`; none blocks.

The engine promises: `next` is called only while a place on a worker is free and the policy holds jobs; each job that
`next` starts gets exactly one `finish`, whatever becomes of it; `leave` comes only for jobs that wait. A policy that
`cancels` must not start a job after its `leave`, and the engine stops its running jobs when the client leaves or the
deadline passes. One that does not cancel never learns: it may start a job for nobody, and that work is waste.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from loadtests.simulator.job import Job
from services.core.outcome import Outcome


class Refusal(Protocol):
    """No, why, and when to come back. Weir's own refusals are ones."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def retry_hint_s(self) -> float | None: ...


class No(NamedTuple):
    """The baselines' refusal."""

    outcome: Outcome
    retry_hint_s: float | None = None


class Policy:
    """A scheduler and its admission. Of itself it expires nothing, learns nothing, predicts nothing, never degrades."""

    cancels = False
    """Whether it wants to know of clients that have left, and of deadlines that have passed."""
    quantiles: Sequence[float] = ()
    """Of the wait, that it predicts at the door; none if it does not."""
    context_shares: Sequence[float] = (1.0,)
    """Share of the retrieved context that is sent, by level."""

    @property
    def level_changes(self) -> int:
        """How often it changed a degradation level so far."""
        return 0

    def offer(self, now: float, job: Job) -> Refusal | None:
        """Take it in (None), or refuse it."""
        raise NotImplementedError

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        """The job to start now, and those that were dropped on the way to it."""
        raise NotImplementedError

    def expire(self, now: float) -> Sequence[Job]:
        """Drop what can no longer make it. Called at `wakes_at`."""
        return ()

    def wakes_at(self) -> float:
        """When `expire` has something to do next; infinity for never."""
        return math.inf

    def leave(self, now: float, job: Job) -> None:
        """Its client left, or its deadline passed, while it waited."""

    def first_token(self, now: float, job: Job) -> None:
        """The first token of its answer has come: its prompt is read."""

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        """Its place is free again."""

    def capacity(self, now: float, slots: int) -> None:
        """How many places there are from now on."""

    def predicted(self, job: Job) -> Sequence[float]:
        """The wait that was predicted when it was admitted, at each of `quantiles`, in seconds."""
        return ()
