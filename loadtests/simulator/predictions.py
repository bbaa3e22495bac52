"""Were the predicted waits honest? Of the waits that a policy put below its q-quantile, a share q should be.

A job that was dropped while it waited has a wait that nobody knows, but at least what had passed. Where that is
already above the prediction it counts as above; else it tells nothing, and is left out.
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
        """Of what arrives between the two; of everything by default."""
        self._policy = policy
        self._from_s, self._until_s = from_s, until_s
        self._quantiles = tuple(policy.quantiles)
        self._below = [0] * len(self._quantiles)
        self._count = 0

    def started(self, now: float, job: Job) -> None:
        """It is on its way to a worker: what was predicted is over. (Its slot may still be a step or a line away.)"""
        if not self._counts(job):
            return
        wait_s = now - job.arrived_at
        self._count += 1
        for place, predicted_s in enumerate(self._policy.predicted(job)):
            self._below[place] += wait_s <= predicted_s

    def gave_up(self, now: float, job: Job) -> None:
        """It waited in vain."""
        if self._counts(job) and now - job.arrived_at > max(self._policy.predicted(job)):
            self._count += 1

    def _counts(self, job: Job) -> bool:
        return bool(self._quantiles) and self._from_s <= job.arrived_at < self._until_s

    def told(self) -> Coverage | None:
        if not self._count:
            return None
        return Coverage(self._count, {q: n / self._count for q, n in zip(self._quantiles, self._below, strict=True)})
