"""A run with the records that metrics.py needs: on-time counts by arrival, and the terms of the fairness bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from loadtests.scenarios.model import Scenario, SlotWorkers, Workers
from loadtests.simulator.capacity import measure, weights_of
from loadtests.simulator.engine import Progress, prepare, report_of
from loadtests.simulator.job import Job
from loadtests.simulator.oracle import Asked
from loadtests.simulator.policies.weir import WeirPolicy
from loadtests.simulator.policy import Policy
from loadtests.simulator.predictions import Predictions
from loadtests.simulator.report import PolicyReport
from loadtests.simulator.runs import Run
from services.core.cost import Weights
from services.core.outcome import Outcome

STEP_S = 0.1


class Cohorts:
    """Distinct requests by first arrival, in steps of STEP_S."""

    def __init__(self, duration_s: float) -> None:
        steps = round(duration_s / STEP_S) + 2
        self.distinct = [0.0] * steps
        self.answers = [0.0] * steps
        """On time; `quality` weighs them by level, `tokens` by the share of the full answer."""
        self.quality = [0.0] * steps
        self.tokens = [0.0] * steps

    def share_on_time(self, from_s: float, until_s: float) -> float | None:
        """Of the requests that arrived between these times; None if there were none."""
        distinct = within(self.distinct, from_s, until_s)
        return within(self.answers, from_s, until_s) / distinct if distinct else None

    @property
    def until_s(self) -> float:
        return len(self.distinct) * STEP_S


def within(counts: Sequence[float], from_s: float, until_s: float) -> float:
    return sum(counts[round(from_s / STEP_S) : round(until_s / STEP_S)])


class InFlight:
    """A policy that also records the cost that each tenant has in flight."""

    def __init__(self, policy: Policy, weights: Weights) -> None:
        self._policy = policy
        self._scheduler = policy.scheduler if isinstance(policy, WeirPolicy) else None
        self._cost = weights.cost
        self._now: dict[str, float] = defaultdict(float)
        self.largest: dict[str, float] = defaultdict(float)
        """The largest cost in flight by tenant, with answers at their granted length."""
        self.quantum = 0.0
        """The largest DRR quantum; 0 for other policies."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        job, dropped = self._policy.next(now)
        if job is not None:
            held = self._now[job.tenant] = self._now[job.tenant] + self._held(job)
            self.largest[job.tenant] = max(self.largest[job.tenant], held)
            if self._scheduler is not None:
                self.quantum = max(self.quantum, self._scheduler.drr.quantum)
        return job, dropped

    def finish(self, now: float, job: Job, outcome: Outcome, prompt_tokens: int, completion_tokens: int) -> None:
        self._now[job.tenant] -= self._held(job)
        self._policy.finish(now, job, outcome, prompt_tokens, completion_tokens)

    def _held(self, job: Job) -> float:
        return self._cost(job.prompt_tokens + job.context_tokens, job.planned_tokens)


class Ends:
    def __init__(self, scenario: Scenario, weights: Weights) -> None:
        self._scenario = scenario
        self._weights = weights
        self.cohorts = Cohorts(scenario.duration_s)
        self.latencies_s: dict[str, list[float]] = defaultdict(list)
        """Of answers in the counting window, by group of tenants."""
        self.asked: list[Asked] = []
        self.longest_prompt = 0

    def __call__(self, now: float, job: Job, why: str) -> None:
        scenario, at = self._scenario, job.first_arrived_at
        counts = scenario.warm_up_s <= at < scenario.duration_s - scenario.cool_down_s
        self._count(now, job, why)
        self.longest_prompt = max(self.longest_prompt, job.prompt_tokens + job.context_tokens)
        if counts and why == Outcome.SERVED:
            self.latencies_s[job.asker.group.name].append(now - job.arrived_at)
        prompt, answer = job.prompt_tokens + job.context_tokens, job.wanted_tokens
        min_s = min(min_service_s(group, prompt, answer) for group in scenario.workers)
        deadline = at + job.deadline - job.arrived_at
        self.asked.append(Asked(at, deadline, self._weights.cost(prompt, answer), min_s, counts))

    def _count(self, now: float, job: Job, why: str) -> None:
        cohorts, place = self.cohorts, int(job.first_arrived_at / STEP_S)
        cohorts.distinct[place] += 1
        if why == Outcome.SERVED and now <= job.deadline:
            quality = self._scenario.quality
            cohorts.answers[place] += 1
            cohorts.quality[place] += quality[min(job.level, len(quality) - 1)]
            cohorts.tokens[place] += job.worker_tokens / job.wanted_tokens


def min_service_s(group: Workers, prompt_tokens: int, answer_tokens: int) -> float:
    if isinstance(group, SlotWorkers):
        return (1 - group.jitter) * (prompt_tokens / group.prefill_tokens_per_s + answer_tokens * group.s_per_token)
    steps = -(-prompt_tokens // group.chunk_tokens) + answer_tokens - 1
    return (steps * (group.base_ms + group.per_sequence_ms) + prompt_tokens * group.per_prefill_token_ms) / 1000.0


@dataclass(frozen=True, slots=True)
class Seen:
    scenario: Scenario
    report: PolicyReport
    ends: Ends
    inflight: InFlight
    levels: Sequence[tuple[float, int]]
    """(time, level changes so far), for each bucket in which they grew."""
    predictions: Predictions
    """Of arrivals in the counting window."""
    weights: Weights

    @property
    def is_weir(self) -> bool:
        return self.report.policy.startswith("weir")

    def level_changes(self, from_s: float, until_s: float) -> int:
        times, counts = [when for when, _ in self.levels], [0, *(count for _, count in self.levels)]
        return counts[bisect_left(times, until_s)] - counts[bisect_left(times, from_s)]


def watched(run: Run, progress: Progress | None = None) -> Seen:
    scenario = run.scenario
    measured, weights = measure(scenario), weights_of(scenario.workers)
    simulation = prepare(scenario, run.choice, measured)
    inflight = InFlight(simulation.policy, weights)
    simulation.policy = cast(Policy, inflight)
    counted = scenario.warm_up_s, scenario.duration_s - scenario.cool_down_s
    predictions = simulation.predictions = Predictions(simulation.policy, *counted)
    ends = simulation.ended = Ends(scenario, weights)
    levels: list[tuple[float, int]] = []

    def look(now: float) -> None:
        changes = simulation.policy.level_changes
        if changes != (levels[-1][1] if levels else 0):
            levels.append((now, changes))
        if progress is not None:
            progress(min(1.0, now / scenario.duration_s))

    simulation.watch = look
    simulation.run_until(scenario.duration_s)
    simulation.drain()
    report = report_of(simulation, run.choice, measured.capacity, 0.0)
    return Seen(scenario, report, ends, inflight, levels, predictions, weights)
