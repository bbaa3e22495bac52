"""A scenario for real processes: the shape of the workers, and a plan of the open loop for each tenant.

Worker time is what stays the same. A simulated worker takes a step for each token, and a step below a few milliseconds
would cost more processor time than this machine has. So steps here last `STEP_S`: a request of the file that holds a
slot for 80 ms becomes an answer of 8 tokens of 10 ms, and its prompt costs nothing. A recorded trace keeps its times,
and its lengths become steps in the same way. Workers of the kind `steps` are simulated workers as they are, whose
prompts cost what the file says: for a scenario in which prompts are what is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from loadtests.cluster.stand import Shape, key_of
from loadtests.load.capacity import Capacity
from loadtests.load.plan import MAX_RETRIES, MAX_TOKENS, Recorded, Step, Tenant
from loadtests.load.recorded import NO_ROWS, OTHERS, Recording, recorded_name
from loadtests.load.recorded import tenants_of as recorded_tenants
from loadtests.scenarios.arrivals import Gamma, Open, Trace
from loadtests.scenarios.distributions import Z95, Constant, Distribution, Exponential, LogNormal, constant
from loadtests.scenarios.model import Retries, Scenario, SlotWorkers, StepWorkers, TenantGroup
from loadtests.simulator.plan import rates
from services.cli.errors import LabError

STEP_S = 0.010
SPREAD = 0.12
"""Of constant lengths, about their median. Sequences of one length that start together end together, for ever: a worker
whose slots have fallen into step frees them all at once, and a newcomer waits for a whole service."""
MOST_USUAL_STEPS = 40
"""Longer answers would take too long where the capacity is measured."""
LEAVES_AFTER_MS = 250.0
"""Clients wait this much longer than their deadline where the file names no patience."""


Service = Constant | LogNormal | Exponential
"""How many steps requests of a group hold a slot."""


def shape_of(scenario: Scenario) -> Shape:
    """The workers. Raises LabError for those that no simulated worker of this stage is."""
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
        usual = min(mean_steps(first.arrivals, group), MOST_USUAL_STEPS)
    else:
        usual = service_of(first, group).median
    return Shape(group.count, group.slots, 1000 * STEP_S, round(usual), group.jitter)


def prompt_of(tenant: TenantGroup) -> float:
    """Tokens of a usual prompt, passages included."""
    return _typical(tenant.prompt_tokens) + _typical(tenant.context_tokens)


def service_of(tenant: TenantGroup, workers: SlotWorkers | StepWorkers) -> Service:
    """How many steps its requests take. Workers of the kind `steps` are played as they are: a step is a token."""
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
            median, most = steps(answer.median), steps(min(answer.most, answer.p95 * 4))
            return LogNormal(kind="log_normal", median=median, p95=max(median, steps(answer.p95)), most=math.ceil(most))
        case Exponential():
            most = steps(min(answer.most, answer.mean * 10))
            return Exponential(kind="exponential", mean=steps(answer.mean), most=math.ceil(most))
        case _:
            raise LabError(f"tenants.{tenant.name}.completion_tokens: real processes have no {answer.kind} lengths.")


def spread(median: float) -> LogNormal:
    """Lengths that would be constant, about their median."""
    p95, most = median * math.exp(Z95 * SPREAD), math.ceil(2 * median)
    return LogNormal(kind="log_normal", median=median, p95=p95, most=most)


def tenants_of(scenario: Scenario, capacity: Capacity) -> tuple[Tenant, ...]:
    """Who asks, at the capacity that was measured. Raises LabError."""
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
    """The tenants, as the tenants file has to know them."""
    return tuple(name for group in scenario.tenants for name in members(group))


def members(group: TenantGroup) -> list[str]:
    """One tenant has the group's name; several are numbered. Of a trace, each client may be one."""
    if isinstance(group.arrivals, Trace):
        clients = {row.client for row in group.arrivals.part().rows} if group.arrivals.by_client else {""}
        return sorted({recorded_name(group.name, client) for client in clients} | {f"{group.name}-{OTHERS}"})
    return [group.name] if group.count == 1 else [f"{group.name}-{number}" for number in range(1, group.count + 1)]


def troubles(scenario: Scenario) -> list[tuple[float, float]]:
    """From when to when something is different: a phase of the load, or a failure of workers."""
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
    kind, cv, steps = _arrivals(group, capacity.tokens_per_s / service.mean, seconds)
    deadline_ms, patience_ms = _times(group)
    for name in members(group):
        yield Tenant(
            name,
            tuple(Step(step.from_s, step.per_s / group.count) for step in steps),
            kind,
            answer_tokens=service,
            deadline_ms=deadline_ms,
            patience_ms=patience_ms,
            stream=group.stream,
            retries=_retries(group),
            key=key_of(name),
            cv=cv,
        )


def _recorded(
    group: TenantGroup, trace: Trace, workers: SlotWorkers, capacity: Capacity, seconds: float
) -> Iterator[Tenant]:
    """The tenants of a trace, at their recorded times, or so much faster that they ask for a multiple of capacity."""
    per_s = None if trace.load is None else trace.load * capacity.tokens_per_s / mean_steps(trace, workers)
    speed = {"load": None, "per_s": per_s, "time_scale": None if per_s else trace.time_scale}
    recording = Recording.model_validate(trace.model_dump() | speed)
    deadline_ms, patience_ms = _times(group)
    template = Tenant(
        group.name, arrivals="recorded", recorded=NO_ROWS, deadline_ms=deadline_ms, patience_ms=patience_ms,
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
    """Of the trace's requests."""
    rows = trace.part().rows
    scale = trace.token_scale
    return fmean(steps_of(scale * row.prompt_tokens, scale * row.completion_tokens, workers) for row in rows)


def steps_of(prompt_tokens: float, answer_tokens: float, workers: SlotWorkers) -> int:
    """How many steps a request takes."""
    seconds = prompt_tokens / workers.prefill_tokens_per_s + answer_tokens * workers.s_per_token
    return min(max(1, round(seconds / STEP_S)), MAX_TOKENS)


def _times(group: TenantGroup) -> tuple[float, float]:
    """Deadline and patience, in milliseconds."""
    deadline_ms = 1000 * _constant(group.deadline_s, f"{group.name}.deadline_s")
    if group.patience_s is None:
        return deadline_ms, deadline_ms + LEAVES_AFTER_MS
    return deadline_ms, 1000 * _constant(group.patience_s, f"{group.name}.patience_s")


def _arrivals(group: TenantGroup, capacity_per_s: float, seconds: float) -> tuple[str, float, list[Step]]:
    """Their law, its coefficient of variation, and the rate from each second on, of the group together."""
    arrivals = group.arrivals
    if not isinstance(arrivals, Open):
        raise LabError(f"tenants.{group.name}.arrivals: real processes play no {arrivals.kind} arrivals here.")
    rate = arrivals.rate_per_s if arrivals.load is None else arrivals.load * capacity_per_s
    assert rate is not None, "a file has one of the two"
    law, cv = ("gamma", arrivals.cv) if isinstance(arrivals, Gamma) else ("poisson", 1.0)
    return law, cv, list(_steps(arrivals, rate, seconds))


def _steps(arrivals: Open, rate: float, seconds: float) -> Iterator[Step]:
    """The rate from each second on at which it changes."""
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
    """Its median, or its mean."""
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
