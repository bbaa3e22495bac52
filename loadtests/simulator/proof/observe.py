"""One run of a case, watched closely: who arrived when and was on time, and what the fairness bound is made of."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import cast

from loadtests.scenarios.model import Scenario, SlotWorkers, Workers
from loadtests.simulator.capacity import measure, weights_of
from loadtests.simulator.engine import Progress, prepare, tell
from loadtests.simulator.job import Job
from loadtests.simulator.policy import Policy
from loadtests.simulator.proof.cases import CHOICES, Case
from loadtests.simulator.proof.oracle import Asked, best_work
from loadtests.simulator.proof.watched import Watched
from loadtests.simulator.report import PolicyReport
from services.core.cost import Weights
from services.core.outcome import Outcome

STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Cohorts:
    """Distinct requests by when they first arrived, a tenth of a second each, as sums from the beginning."""

    distinct: Sequence[float]
    on_time: Sequence[float]
    quality: Sequence[float]
    tokens: Sequence[float]
    """Of those on time: by the weight of their level, and by the share of their uncut answer that they got."""

    def distinct_in(self, from_s: float, until_s: float) -> float:
        return _within(self.distinct, from_s, until_s)

    def on_time_in(self, from_s: float, until_s: float) -> float:
        return _within(self.on_time, from_s, until_s)

    def quality_in(self, from_s: float, until_s: float) -> float:
        return _within(self.quality, from_s, until_s)

    def tokens_in(self, from_s: float, until_s: float) -> float:
        return _within(self.tokens, from_s, until_s)

    def share_on_time(self, from_s: float, until_s: float) -> float | None:
        """Of those who arrived between the two."""
        distinct = self.distinct_in(from_s, until_s)
        return self.on_time_in(from_s, until_s) / distinct if distinct else None

    @property
    def until_s(self) -> float:
        return (len(self.distinct) - 1) * STEP_S


def _within(sums: Sequence[float], from_s: float, until_s: float) -> float:
    last = len(sums) - 1
    return sums[min(last, round(until_s / STEP_S))] - sums[min(last, round(from_s / STEP_S))]


@dataclass(frozen=True, slots=True)
class Seen:
    """What came out of one run."""

    report: PolicyReport
    cohorts: Cohorts
    latency_p95_s: Mapping[str, float]
    """Of answers that counted, by group of tenants."""
    levels: Sequence[tuple[float, int]]
    """When the number of level changes so far was seen to be a new one."""
    inflight: Mapping[str, float]
    """The most that a tenant had in flight at once: cost, answers as long as they were allowed to be."""
    quantum: float
    """The largest that the scheduler used; 0 if it has none."""
    longest_prompt_tokens: int
    most_tokens: int
    """The longest answer that was allowed to anyone."""
    covered: Mapping[float, float]
    """Of the waits until a worker was given the request: the share below each predicted quantile."""
    oracle_cost: float | None
    weights: Weights


def observe(case: Case, policy: str, seed: int, progress: Progress | None = None) -> Seen:
    """Make the run."""
    scenario, choice = case.at(seed), CHOICES[policy]
    measured = measure(scenario)
    simulation = prepare(scenario, choice, measured)
    weights = weights_of(scenario.workers)
    ends = Ends(scenario, weights, keeps_all=case.oracle)
    watched = Watched(simulation.policy, weights, scenario.warm_up_s, scenario.duration_s - scenario.cool_down_s)
    simulation.ended = ends
    simulation.policy = cast(Policy, watched)
    levels: list[tuple[float, int]] = []

    def look(now: float) -> None:
        if watched.level_changes != (levels[-1][1] if levels else 0):
            levels.append((now, watched.level_changes))
        if progress is not None:
            progress(min(1.0, now / scenario.duration_s))

    simulation.watch = look
    began = perf_counter()
    simulation.run_until(scenario.duration_s)
    simulation.drain()
    spent_s = perf_counter() - began
    return Seen(
        report=tell(simulation, choice, measured.capacity, spent_s),
        cohorts=ends.cohorts(),
        latency_p95_s={name: p95(latencies) for name, latencies in ends.latencies.items()},
        levels=levels,
        inflight=dict(watched.most_inflight),
        quantum=watched.quantum,
        longest_prompt_tokens=ends.longest_prompt,
        most_tokens=max(group.max_tokens for group in scenario.tenants),
        covered=watched.covered,
        oracle_cost=best_work(ends.asked, measured.capacity.cost_per_s) if case.oracle else None,
        weights=weights,
    )


def p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


class Ends:
    """Is told of every distinct request's end."""

    def __init__(self, scenario: Scenario, weights: Weights, *, keeps_all: bool) -> None:
        self._until_s = scenario.duration_s - scenario.cool_down_s
        self._from_s = scenario.warm_up_s
        self._weights = weights
        self._workers = scenario.workers
        self._quality = scenario.quality
        self._keeps_all = keeps_all
        steps = round(scenario.duration_s / STEP_S) + 2
        self._counts = [[0.0] * steps for _ in range(4)]
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.asked: list[Asked] = []
        self.longest_prompt = 0

    def __call__(self, now: float, job: Job, why: str) -> None:
        at = job.first_arrived_at
        place = int(at / STEP_S)
        distinct, on_time, quality, tokens = self._counts
        distinct[place] += 1
        self.longest_prompt = max(self.longest_prompt, job.prompt_tokens + job.context_tokens)
        is_on_time = why == Outcome.SERVED and now <= job.deadline
        if is_on_time:
            on_time[place] += 1
            quality[place] += self._quality[min(job.level, len(self._quality) - 1)]
            tokens[place] += job.worker_tokens / min(job.natural_tokens, job.max_tokens)
        counts = self._from_s <= at < self._until_s
        if counts and why == Outcome.SERVED:
            self.latencies[job.asker.group.name].append(now - job.arrived_at)
        if self._keeps_all:
            self.asked.append(self._asked(job, counts))

    def _asked(self, job: Job, counts: bool) -> Asked:
        prompt, answer = job.prompt_tokens + job.context_tokens, min(job.natural_tokens, job.max_tokens)
        least_s = min(least_service_s(group, prompt, answer) for group in self._workers)
        deadline = job.first_arrived_at + job.deadline - job.arrived_at
        return Asked(job.first_arrived_at, deadline, self._weights.cost(prompt, answer), least_s, counts)

    def cohorts(self) -> Cohorts:
        return Cohorts(*([0.0, *accumulate(counts)] for counts in self._counts))


def least_service_s(group: Workers, prompt_tokens: int, answer_tokens: int) -> float:
    """The least time that it can take on an empty worker of this kind."""
    if isinstance(group, SlotWorkers):
        return (1 - group.jitter) * (prompt_tokens / group.prefill_tokens_per_s + answer_tokens * group.s_per_token)
    steps = -(-prompt_tokens // group.chunk_tokens) + answer_tokens - 1
    return (steps * (group.base_ms + group.per_sequence_ms) + prompt_tokens * group.per_prefill_token_ms) / 1000.0


def changes_between(levels: Sequence[tuple[float, int]], from_s: float, until_s: float) -> int:
    """Level changes between the two, as `Seen.levels` has them."""
    times = [when for when, _ in levels]
    counts = [0, *(count for _, count in levels)]
    return counts[bisect_left(times, until_s)] - counts[bisect_left(times, from_s)]
