"""Coverage of predicted waits: a share q of the waits should be below the predicted q-quantile.

The wait of a dropped job is unknown, but longer than its time in the queue. If that is above every predicted quantile,
the job counts as above; otherwise it is left out.
"""

from __future__ import annotations

from math import inf

from loadtests.simulator.job import Job
from loadtests.simulator.policy import Policy
from loadtests.simulator.report import Coverage


class Predictions:
    """Counts of waits below each predicted quantile."""

    __slots__ = ("_below", "_count", "_from_s", "_policy", "_quantiles", "_until_s")

    def __init__(self, policy: Policy, from_s: float = 0.0, until_s: float = inf) -> None:
        """Counts jobs that arrive between the two times."""
        self._policy = policy
        self._from_s, self._until_s = from_s, until_s
        self._quantiles = tuple(policy.quantiles)
        self._below = [0] * len(self._quantiles)
        self._count = 0

    def started(self, now: float, job: Job) -> None:
        """The policy started the job. (It may still wait at its worker, which no prediction covers.)"""
        if not self._counts(job):
            return
        wait_s = now - job.arrived_at
        self._count += 1
        for place, predicted_s in enumerate(self._policy.predicted(job)):
            self._below[place] += wait_s <= predicted_s

    def gave_up(self, now: float, job: Job) -> None:
        """The job was dropped from the queue."""
        if self._counts(job) and now - job.arrived_at > max(self._policy.predicted(job)):
            self._count += 1

    def _counts(self, job: Job) -> bool:
        return bool(self._quantiles) and self._from_s <= job.arrived_at < self._until_s

    def coverage(self) -> Coverage | None:
        if not self._count:
            return None
        return Coverage(self._count, {q: n / self._count for q, n in zip(self._quantiles, self._below, strict=True)})
