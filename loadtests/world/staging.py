"""A scenario file played by the world: all of HTTP on the virtual clock, every promise judged.

The world keeps the file's workers and slots, service times, loads and phases, deadlines, patience, retry policies and
worker failures. Questions and answers are its own, known to the last byte, so all answers have one length. After the
file's time, two deadlines settle the run, and one deadline of light load must be served completely.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from loadtests.report.figure import Figure
from loadtests.scenarios.arrivals import Open, Poisson
from loadtests.scenarios.distributions import Constant, Distribution
from loadtests.scenarios.figures import is_asked, judged
from loadtests.scenarios.model import Failure, SlotWorkers, TenantGroup
from loadtests.scenarios.model import Scenario as ScenarioFile
from loadtests.world.play import Result
from loadtests.world.scenario import Fault, Group, Load, Scenario, WorkerSpec
from services.cli.errors import LabError
from services.router.config import RouterSettings

WORKER_QUEUE = 8
ANSWER_TOKENS = 14
"""Tokens of every right answer to a question with a nonce; `tests/world` checks it."""
MACHINES = 4
CALM_LOAD = 0.3
LEAVES_AFTER_S = 0.25
"""Seconds after the deadline at which clients disconnect if the file names no patience."""
MANNERS = {"never": "none", "immediate": "naive", "hint": "hint"}
KINDS = {"down": "killed worker", "frozen": "frozen worker", "slow": "slow worker"}


def targets(file: ScenarioFile, result: Result) -> list[Figure]:
    """The file's bounds that the world can measure: shares on time, of the worst group if none is named."""
    return [
        judged(must, result.on_time[must.of] if must.of else min(result.on_time.values()))
        for must in file.must
        if must.figure == "on_time" and must.window is None and is_asked(must, "world")
    ]


def made_of(file: ScenarioFile) -> Scenario:
    """The world's form of a file. Raises LabError."""
    workers = _workers(file)
    service_s = _service_s(file, workers)
    made = Scenario(file.seed)
    step_ms = 1000 * service_s / ANSWER_TOKENS
    made.workers = [WorkerSpec(workers.slots, step_ms, 0.0, WORKER_QUEUE, prefill_ms=0.0)] * workers.count
    made.machines = MACHINES
    made.ask_share = made.stream_share = 0.0
    made.retrieval = False
    made.max_inflight, made.max_queue, made.tenant_queue = (
        RouterSettings.model_fields[field].default for field in ("max_inflight", "max_queue_size", "tenant_queue_size")
    )
    groups = [_group(group) for group in file.tenants]
    made.deadline_s = max(group.deadline_s for group in groups)
    made.loads = [
        load for group, each in zip(groups, file.tenants, strict=True) for load in _loads(group, each, file, service_s)
    ]
    made.faults = sorted(_faults(workers), key=lambda fault: fault.begins_s)
    made.faults_end_s = max([file.duration_s, *(fault.begins_s + fault.lasts_s for fault in made.faults)])
    made.calm_from_s = made.faults_end_s + 2 * made.deadline_s
    made.ends_s = made.calm_from_s + made.deadline_s
    light = CALM_LOAD * workers.count * workers.slots / service_s
    made.loads.append(Load(made.faults_end_s, made.ends_s - made.faults_end_s - made.deadline_s, light))
    made.loads.append(Load(made.calm_from_s, made.deadline_s, light))
    return made


def _workers(file: ScenarioFile) -> SlotWorkers:
    if len(file.workers) != 1 or not isinstance(file.workers[0], SlotWorkers):
        raise LabError("The world plays one group of workers of the kind `slots`: put another into `stages`.")
    return file.workers[0]


def _service_s(file: ScenarioFile, workers: SlotWorkers) -> float:
    """How long each request holds a slot."""
    found = {
        (_number(group, group.prompt_tokens, "prompt_tokens") + _number(group, group.context_tokens, "context_tokens"))
        / workers.prefill_tokens_per_s
        + _number(group, group.completion_tokens, "completion_tokens") * workers.s_per_token
        for group in file.tenants
    }
    if len(found) != 1:
        raise LabError("In the world all answers have one length: put another `completion_tokens` into `stages`.")
    return found.pop()


def _number(group: TenantGroup, value: Distribution, field: str) -> float:
    if not isinstance(value, Constant):
        raise LabError(f"tenants.{group.name}.{field}: the world needs a number.")
    return value.value


def _group(group: TenantGroup) -> Group:
    manner = MANNERS.get(group.retries.wait)
    if manner is None:
        raise LabError(f"tenants.{group.name}.retries.wait: the world has no {group.retries.wait}.")
    deadline_s = _number(group, group.deadline_s, "deadline_s")
    timeout = group.client_timeout_s
    client_timeout_s = deadline_s + LEAVES_AFTER_S if timeout is None else _number(group, timeout, "client_timeout_s")
    retries = group.retries.attempts
    return Group(
        group.name, group.count, deadline_s, client_timeout_s, group.stream, manner if retries else "none", retries,
        group.retries.impatient, group.retries.repeats,
    )  # fmt: skip


def _loads(group: Group, source: TenantGroup, file: ScenarioFile, service_s: float) -> Iterator[Load]:
    """The group's arrivals between the changes of their rate."""
    arrivals = source.arrivals
    if not isinstance(arrivals, Open) or not isinstance(arrivals, Poisson):
        raise LabError(f"tenants.{source.name}.arrivals: the world has no {arrivals.kind} arrivals.")
    workers = _workers(file)
    capacity_per_s = workers.count * workers.slots / service_s
    rate = arrivals.rate_per_s if arrivals.load is None else arrivals.load * capacity_per_s
    assert rate is not None, "a file has one of the two"
    for begins_s, ends_s in pairwise(sorted({*arrivals.moments, file.duration_s})):
        times = arrivals.times_at(begins_s)
        if times:
            yield Load(begins_s, ends_s - begins_s, rate * times, group)


def _faults(workers: SlotWorkers) -> Iterator[Fault]:
    for failure in workers.failures:
        for number in range(min(failure.workers or workers.count, workers.count)):
            yield _fault(failure, number)


def _fault(failure: Failure, number: int) -> Fault:
    lasts_s = failure.until_s - failure.from_s
    return Fault(KINDS[failure.kind], failure.from_s, lasts_s, worker=number, factor=failure.factor)
