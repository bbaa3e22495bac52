"""A scenario for real processes: the shape of the workers, and an open-loop plan for each tenant.

Worker time is preserved. A simulated worker takes one step for each token, and steps below a few milliseconds would
cost too much processor time. So steps last `STEP_S`: a request that holds a slot for 80 ms becomes an answer of 8
tokens of 10 ms, and its prompt costs nothing. A recorded trace keeps its times, and its lengths become steps in the
same way. Workers of the kind `steps` are simulated as they are, and their prompts cost what the file says: this is for
scenarios that cut prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from loadtests.cluster.stand import Shape, key_of
from loadtests.load.capacity import Capacity
from loadtests.load.plan import MAX_RETRIES, MAX_TOKENS, PROMPT_TOKENS, Recorded, Step, Tenant
from loadtests.load.recorded import NO_ROWS, OTHERS, Recording, recorded_name
from loadtests.load.recorded import tenants_of as recorded_tenants
from loadtests.scenarios.arrivals import Gamma, Open, Trace
from loadtests.scenarios.distributions import Z95, Constant, Distribution, Exponential, LogNormal, constant
from loadtests.scenarios.model import Retries, Scenario, SlotWorkers, StepWorkers, TenantGroup
from loadtests.simulator.plan import rates
from services.cli.errors import LabError

STEP_S = 0.010
SPREAD = 0.12
"""Spread of constant lengths about their median. Equal sequences that start together end together, again and again: all
slots of such a worker free at once, and a newcomer waits for a whole service."""
MAX_USUAL_STEPS = 40
"""Longer answers would make the measurement of the capacity too long."""
LEAVES_AFTER_MS = 250.0
"""How long after its deadline a client disconnects if the file names no patience."""


Service = Constant | LogNormal | Exponential
"""The number of steps for which requests of a group hold a slot."""


def shape_of(scenario: Scenario) -> Shape:
    """The shape of the workers. Raises LabError for workers that this stage cannot simulate."""
    if len(scenario.workers) != 1:
        raise LabError("Real processes play one group of workers: put others into `stages`.")
    (group,) = scenario.workers
    first = scenario.tenants[0]
    if isinstance(group, StepWorkers):
        if isinstance(first.arrivals, Trace):
            raise LabError("Real processes replay a trace with workers of the kind `slots`.")
        return Shape(
            group.count, group.slots, group.base_ms, round(service_of(first, group).median), 0.0,
            group.per_sequence_ms, group.per_prefill_token_ms, round(prompt_of(first)),
        )  # fmt: skip
    if isinstance(first.arrivals, Trace):
        usual = min(mean_steps(first.arrivals, group), MAX_USUAL_STEPS)
    else:
        usual = service_of(first, group).median
    return Shape(group.count, group.slots, 1000 * STEP_S, round(usual), group.jitter)


def prompt_of(tenant: TenantGroup) -> float:
    return _typical(tenant.prompt_tokens) + _typical(tenant.context_tokens)


def service_of(tenant: TenantGroup, workers: SlotWorkers | StepWorkers) -> Service:
    """The steps of its requests. Workers of the kind `steps` are played as they are: one step for each token."""
    answer = tenant.completion_tokens
    if isinstance(workers, StepWorkers):
        return constant(_constant(answer, f"{tenant.name}.completion_tokens"))
    read_s, per_token_s = prompt_of(tenant) / workers.prefill_tokens_per_s, workers.s_per_token

    def steps(tokens: float) -> float:
        return max(1.0, (read_s + tokens * per_token_s) / STEP_S)

    match answer:
        case Constant():
            return spread(steps(answer.value))
        case LogNormal():
            median, high = steps(answer.median), steps(min(answer.max, answer.p95 * 4))
            return LogNormal(kind="log_normal", median=median, p95=max(median, steps(answer.p95)), max=math.ceil(high))
        case Exponential():
            high = steps(min(answer.max, answer.mean * 10))
            return Exponential(kind="exponential", mean=steps(answer.mean), max=math.ceil(high))
        case _:
            raise LabError(f"tenants.{tenant.name}.completion_tokens: real processes have no {answer.kind} lengths.")


def spread(median: float) -> LogNormal:
    """A log-normal spread about a constant length, at most twice the median."""
    p95, high = median * math.exp(Z95 * SPREAD), math.ceil(2 * median)
    return LogNormal(kind="log_normal", median=median, p95=p95, max=high)


def tenants_of(scenario: Scenario, capacity: Capacity) -> tuple[Tenant, ...]:
    """The tenants at the measured capacity. Raises LabError."""
    (workers,) = scenario.workers
    return tuple(
        tenant
        for group in scenario.tenants
        for tenant in (
            _recorded(group, group.arrivals, workers, capacity, scenario.duration_s)
            if isinstance(group.arrivals, Trace) and isinstance(workers, SlotWorkers)
            else _members(group, workers, capacity, scenario.duration_s)
        )
    )


def names_of(scenario: Scenario) -> tuple[str, ...]:
    return tuple(name for group in scenario.tenants for name in members(group))


def members(group: TenantGroup) -> list[str]:
    """One tenant has the group's name; several are numbered. In a trace each client may be a tenant."""
    if isinstance(group.arrivals, Trace):
        clients = {row.client for row in group.arrivals.part().rows} if group.arrivals.by_client else {""}
        return sorted({recorded_name(group.name, client) for client in clients} | {f"{group.name}-{OTHERS}"})
    return [group.name] if group.count == 1 else [f"{group.name}-{number}" for number in range(1, group.count + 1)]


def troubles(scenario: Scenario) -> list[tuple[float, float]]:
    """The (from, until) seconds of each phase of the load and of each failure of workers."""
    phases = [
        (phase.from_s, phase.until_s)
        for group in scenario.tenants
        if isinstance(group.arrivals, Open)
        for phase in group.arrivals.phases
    ]
    return phases + [(each.from_s, each.until_s) for group in scenario.workers for each in group.failures]


def _members(
    group: TenantGroup, workers: SlotWorkers | StepWorkers, capacity: Capacity, seconds: float
) -> Iterator[Tenant]:
    service = service_of(group, workers)
    reads = isinstance(workers, StepWorkers) and not group.ask
    prompt = constant(max(1.0, prompt_of(group))) if reads else PROMPT_TOKENS
    kind, cv, steps = _arrivals(group, capacity.tokens_per_s / service.mean, seconds)
    deadline_ms, client_timeout_ms = _times(group)
    for name in members(group):
        yield Tenant(
            name,
            tuple(Step(step.from_s, step.per_s / group.count) for step in steps),
            kind,
            prompt_tokens=prompt,
            answer_tokens=service,
            deadline_ms=deadline_ms,
            client_timeout_ms=client_timeout_ms,
            stream=group.stream,
            retries=_retries(group),
            key=key_of(name),
            cv=cv,
        )


def _recorded(
    group: TenantGroup, trace: Trace, workers: SlotWorkers, capacity: Capacity, seconds: float
) -> Iterator[Tenant]:
    """The tenants of a trace, at their recorded times, or scaled in time to a multiple of the capacity."""
    per_s = None if trace.load is None else trace.load * capacity.tokens_per_s / mean_steps(trace, workers)
    speed = {"load": None, "per_s": per_s, "time_scale": None if per_s else trace.time_scale}
    recording = Recording.model_validate(trace.model_dump() | speed)
    deadline_ms, client_timeout_ms = _times(group)
    template = Tenant(
        group.name, arrivals="recorded", recorded=NO_ROWS, deadline_ms=deadline_ms, client_timeout_ms=client_timeout_ms,
        retries=_retries(group),
    )  # fmt: skip
    try:
        found = recorded_tenants(template, recording, seconds)
    except ValueError as error:
        raise LabError(f"tenants.{group.name}.arrivals: {error}") from None
    for tenant in found:
        rows = tuple(Recorded(row.at_s, 1, steps_of(row.prompt_tokens, row.answer_tokens, workers)) for row in
                     tenant.recorded)  # fmt: skip
        yield replace(tenant, recorded=rows, key=key_of(tenant.name))


def mean_steps(trace: Trace, workers: SlotWorkers) -> float:
    rows = trace.part().rows
    scale = trace.token_scale
    return fmean(steps_of(scale * row.prompt_tokens, scale * row.completion_tokens, workers) for row in rows)


def steps_of(prompt_tokens: float, answer_tokens: float, workers: SlotWorkers) -> int:
    seconds = prompt_tokens / workers.prefill_tokens_per_s + answer_tokens * workers.s_per_token
    return min(max(1, round(seconds / STEP_S)), MAX_TOKENS)


def _times(group: TenantGroup) -> tuple[float, float]:
    deadline_ms = 1000 * _constant(group.deadline_s, f"{group.name}.deadline_s")
    if group.client_timeout_s is None:
        return deadline_ms, deadline_ms + LEAVES_AFTER_MS
    return deadline_ms, 1000 * _constant(group.client_timeout_s, f"{group.name}.client_timeout_s")


def _arrivals(group: TenantGroup, capacity_per_s: float, seconds: float) -> tuple[str, float, list[Step]]:
    """The arrival process, its coefficient of variation, and the rates of the whole group."""
    arrivals = group.arrivals
    if not isinstance(arrivals, Open):
        raise LabError(f"tenants.{group.name}.arrivals: real processes play no {arrivals.kind} arrivals here.")
    rate = arrivals.rate_per_s if arrivals.load is None else arrivals.load * capacity_per_s
    assert rate is not None, "a file has one of the two"
    law, cv = ("gamma", arrivals.cv) if isinstance(arrivals, Gamma) else ("poisson", 1.0)
    return law, cv, list(_steps(arrivals, rate, seconds))


def _steps(arrivals: Open, rate: float, seconds: float) -> Iterator[Step]:
    from_s = 0.0
    for until_s, per_s in rates(arrivals, rate):
        yield Step(from_s, per_s)
        if until_s >= seconds:
            return
        from_s = until_s


def _retries(group: TenantGroup) -> Retries:
    if group.retries.attempts > MAX_RETRIES:
        raise LabError(f"tenants.{group.name}.retries.attempts: real processes try {MAX_RETRIES} times more at most.")
    return group.retries


def _typical(distribution: Distribution) -> float:
    match distribution:
        case Constant():
            return distribution.value
        case LogNormal():
            return distribution.median
        case Exponential():
            return distribution.mean
        case _:
            raise LabError(f"Real processes have no prompts of {distribution.kind} lengths.")


def _constant(distribution: Distribution, place: str) -> float:
    if not isinstance(distribution, Constant):
        raise LabError(f"tenants.{place}: real processes need a number.")
    return distribution.value
