"""A policy that goes on as it was, while someone looks over its shoulder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.simulator.job import Job
from loadtests.simulator.policies.weir import WeirPolicy
from loadtests.simulator.policy import Policy
from services.core.cost import Weights
from services.core.outcome import Outcome


class Watched:
    """Adds up what is in flight, and compares waits with what had been predicted."""

    def __init__(self, policy: Policy, weights: Weights, from_s: float, until_s: float) -> None:
        self._policy = policy
        self._cost = weights.cost
        self._weir = policy.weir if isinstance(policy, WeirPolicy) else None
        self._inflight: dict[str, float] = defaultdict(float)
        self._from_s, self._until_s = from_s, until_s
        self._below = [0] * len(policy.quantiles)
        self._waits = 0
        self.most_inflight: dict[str, float] = defaultdict(float)
        self.quantum = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    @property
    def covered(self) -> Mapping[float, float]:
        """The share of waits below each predicted quantile."""
        if not self._waits:
            return {}
        return {q: below / self._waits for q, below in zip(self._policy.quantiles, self._below, strict=True)}

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        job, dropped = self._policy.next(now)
        for other in dropped:
            self._gave_up(now, other)
        if job is not None:
            self._started(now, job)
        return job, dropped

    def expire(self, now: float) -> Sequence[Job]:
        dropped = self._policy.expire(now)
        for job in dropped:
            self._gave_up(now, job)
        return dropped

    def leave(self, now: float, job: Job) -> None:
        self._gave_up(now, job)
        self._policy.leave(now, job)

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        self._inflight[job.tenant] -= self._held(job)
        self._policy.finish(now, job, outcome, prompt_tokens, completion_tokens)

    # ---- what is in flight

    def _started(self, now: float, job: Job) -> None:
        held = self._inflight[job.tenant] = self._inflight[job.tenant] + self._held(job)
        self.most_inflight[job.tenant] = max(self.most_inflight[job.tenant], held)
        if self._weir is not None:
            self.quantum = max(self.quantum, self._weir.drr.quantum)
        if self._counts(job):
            wait_s = now - job.arrived_at
            self._waits += 1
            for place, predicted_s in enumerate(self._policy.predicted(job)):
                self._below[place] += wait_s <= predicted_s

    def _held(self, job: Job) -> float:
        return self._cost(job.prompt_tokens + job.context_tokens, job.granted_tokens)

    # ---- what was predicted

    def _counts(self, job: Job) -> bool:
        return bool(self._below) and self._from_s <= job.arrived_at < self._until_s

    def _gave_up(self, now: float, job: Job) -> None:
        """Its wait is known only to be at least what passed."""
        if self._counts(job) and now - job.arrived_at > max(self._policy.predicted(job)):
            self._waits += 1
