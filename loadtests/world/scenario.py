"""What one seed plays: cluster size, load and faults.

The time line has four parts. `warm`: light load that teaches the router. `storm`: 0.3 to 5 times the capacity, with the
faults. `settle`: twice the deadline after the last fault. `calm`: light load, which must be served.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from loadtests.world.faults import EXCHANGE_KINDS, KINDS
from loadtests.world.governorplan import GovernorPlan, governor_plan
from services.worker.config import WorkerSettings

TOKENS = 16
"""Approximate tokens of an answer, for the capacity estimate only."""
PROMPT_TOKENS = 34
PASSAGES_TOKENS = 146
"""Tokens that the passages add to an /ask prompt."""
PREFILL_MS_PER_TOKEN: float = WorkerSettings.model_fields["sim_prefill_ms_per_token"].default
"""The simulated engine's default, used by the world."""
MANNERS = ("none", "hint", "hint", "naive")
"""none: no retry after a refusal. hint: a retry at the hinted time. naive: immediate retries, up to three. A fourth
manner is drawn for each request, `early`: retries before the hint, with the same bytes over the same connection.
"""


@dataclass(slots=True, frozen=True)
class WorkerSpec:
    """A worker's size and speed. `evil`: the byzantine worker. `prefill_ms`: time per prompt token, by default the
    worker's.
    """

    slots: int
    step_ms: float
    per_sequence_ms: float
    queue: int
    evil: bool = False
    prefill_ms: float | None = None

    def answers_per_s(self, prompt_tokens: float) -> float:
        """Approximate capacity for prompts of this size. A step that reads a prompt delays its whole batch."""
        writing_ms = TOKENS * (self.step_ms + self.per_sequence_ms * self.slots) / self.slots
        return 1000 / (writing_ms + PREFILL_MS_PER_TOKEN * prompt_tokens)


@dataclass(slots=True, frozen=True)
class Group:
    """`count` equal tenants and their clients' behaviour. `manner`: one of MANNERS. `impatient`: the share of clients
    that are naive instead. `repeats`: whether retries have the same bytes and connection.
    """

    name: str
    count: int
    deadline_s: float
    leaves_after_s: float
    stream_share: float
    manner: str
    retries: int
    impatient: float = 0.0
    repeats: bool = False


@dataclass(slots=True, frozen=True)
class Load:
    """Poisson arrivals from `begins_s` for `lasts_s`. `group`: of one group's tenants."""

    begins_s: float
    lasts_s: float
    per_s: float
    group: Group | None = None


@dataclass(slots=True, frozen=True)
class Fault:
    """A fault. `kind` is a key of `faults.FAULTS`. Worker and slowdown are drawn at its start if not given."""

    kind: str
    begins_s: float
    lasts_s: float
    worker: int | None = None
    factor: float | None = None


@dataclass(slots=True, frozen=True)
class Tight:
    """Bounds of a connection in bytes, small enough for the world's answers to reach them.

    `window`: the kernels' buffers of one direction. `unread`: `connection.MAX_UNREAD_BYTES`, where a handler waits for
    its client. `ahead`: `upstream_connection.HIGH_WATER_BYTES`, where reading from a worker pauses.
    """

    window: int
    unread: int
    ahead: int


@dataclass(slots=True)
class Scenario:
    """The parameters of a run. Times in seconds from the moment the cluster is up."""

    seed: int
    workers: list[WorkerSpec] = field(default_factory=list)
    routers: int = 1
    deadline_s: float = 2.0
    tenants: int = 1
    machines: int = 1
    manner: str = "hint"
    stream_share: float = 0.2
    ask_share: float = 0.1
    leaver_share: float = 0.0
    slow_share: float = 0.0
    early_share: float = 0.0
    loads: list[Load] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    latency_s: float = 0.0002
    jitter_s: float = 0.0
    retrieval: bool = True
    short_reads: float = 0.0
    max_inflight: int = 64
    max_queue: int = 64
    tenant_queue: int = 32
    faults_end_s: float = 0.0
    calm_from_s: float = 0.0
    ends_s: float = 0.0
    tight: Tight | None = None
    governor: GovernorPlan = field(default_factory=GovernorPlan)

    @property
    def capacity_per_s(self) -> float:
        """Approximate answers per second of the honest workers."""
        asks = self.ask_share if self.retrieval else 0.0
        prompt_tokens = PROMPT_TOKENS + asks * PASSAGES_TOKENS
        return self._answers_per_s([worker for worker in self.workers if not worker.evil], prompt_tokens)

    @property
    def max_per_s(self) -> float:
        """An upper bound of all workers' answers per second: prompts cost nothing.

        Byzantine workers count too, with the speed that they announce.
        """
        return self._answers_per_s(self.workers, 0.0)

    def _answers_per_s(self, workers: list[WorkerSpec], prompt_tokens: float) -> float:
        slots = sum(worker.slots for worker in workers)
        return sum(worker.answers_per_s(prompt_tokens) for worker in workers) * min(1.0, self.max_inflight / slots)


def scenario(seed: int, *, size: int = 1000, one_router: bool = False) -> Scenario:
    """The scenario of a seed: about `size` requests, with faults in two thirds of all seeds. `one_router`: also where
    the seed has several.
    """
    rng = Random(f"scenario {seed}")
    count = rng.choice((1, 2, 2, 3, 3, 4, 4, 6, 8, 16))
    made = Scenario(seed)
    made.workers = [_worker(rng) for _ in range(count)]
    if count > 1 and (chance := rng.random()) < 0.2:
        evil = count - 1 if chance < 0.05 else 1
        made.workers[-evil:] = [replace(worker, evil=True) for worker in made.workers[-evil:]]
    slots = sum(worker.slots for worker in made.workers)
    made.max_inflight = rng.choice((slots, slots, slots + 4, max(1, slots // 2), 64))
    made.max_queue = rng.choice((8, 32, 64, 256))
    made.tenant_queue = rng.choice((4, 16, 64))
    made.deadline_s = rng.choice((1.0, 1.5, 2.0, 3.0, 5.0))
    made.tenants = rng.randint(1, 6)
    made.machines = rng.randint(1, 3)
    made.manner = rng.choice(MANNERS)
    made.stream_share = rng.choice((0.0, 0.1, 0.3))
    made.ask_share = rng.choice((0.0, 0.1, 0.3))
    made.leaver_share = rng.choice((0.0, 0.0, 0.02, 0.1))
    made.slow_share = rng.choice((0.0, 0.0, 0.02))
    made.retrieval = rng.random() < 0.6
    made.latency_s = rng.choice((0.0001, 0.0005, 0.002))
    made.jitter_s = made.latency_s * rng.choice((0.0, 0.5, 3.0))
    made.short_reads = rng.choice((0.0, 0.0, 0.1, 0.5))
    _time_line(made, rng, size)
    _tighten(made)
    made.early_share = Random(f"early {seed}").choice((0.0, 0.1, 0.3))
    if not one_router:
        _multiply(made)
    return made


def _multiply(made: Scenario) -> None:
    """In a quarter of all seeds, several routers share the workers. Each client machine uses one of them."""
    rng = Random(f"routers {made.seed}")
    if rng.random() < 0.25:
        made.routers = rng.choice((2, 2, 3, 4))
        made.machines = max(made.machines, made.routers)
        if made.faults:
            begins_s, ends_s = made.faults[0].begins_s, made.faults_end_s
            made.faults += [
                Fault(kind, begins_s, min(1.0, ends_s - begins_s)) for kind in rng.sample(EXCHANGE_KINDS, 1)
            ]


def _tighten(made: Scenario) -> None:
    """In a quarter of all seeds, shrink the buffers and add slow readers."""
    rng = Random(f"tight {made.seed}")
    if rng.random() < 0.25:
        made.tight = Tight(rng.choice((1024, 2048)), rng.choice((0, 256, 1024)), rng.choice((100, 500)))
        made.stream_share = max(made.stream_share, 0.3)
        made.slow_share = rng.choice((0.05, 0.2))


def _worker(rng: Random) -> WorkerSpec:
    slots = rng.choice((1, 2, 4, 4, 8))
    return WorkerSpec(slots, rng.uniform(3.0, 12.0), rng.uniform(0.05, 0.5), rng.choice((0, 2, 8)) or 1)


def _time_line(made: Scenario, rng: Random, size: int) -> None:
    capacity, deadline = made.capacity_per_s, made.deadline_s
    light = capacity * 0.3
    warm_s, settle_s, calm_s = deadline, 2 * deadline, deadline
    times = rng.choice((0.3, 0.8, 1.5, 2.0, 3.0, 5.0))
    in_storm = max(100.0, size - light * (warm_s + settle_s + calm_s))
    storm_s = min(max(in_storm / (capacity * times), 1.5 * deadline), 30.0)
    storm = Load(warm_s, storm_s, in_storm / storm_s)
    ends_s = warm_s + storm_s
    if rng.random() < 0.67:
        for _ in range(rng.randint(1, 4)):
            begins_s = warm_s + rng.random() * storm_s
            lasts_s = rng.choice((0.05, 0.3, 1.0, 2.0)) * rng.uniform(0.5, 1.5)
            made.faults.append(Fault(rng.choice(KINDS), begins_s, lasts_s))
            ends_s = max(ends_s, begins_s + lasts_s)
    made.faults.sort(key=lambda fault: fault.begins_s)
    made.faults_end_s = ends_s
    made.calm_from_s = ends_s + settle_s
    made.ends_s = made.calm_from_s + calm_s
    made.governor = governor_plan(made, (warm_s, storm_s), size)
    made.loads = [Load(0.0, warm_s, light), storm, Load(ends_s, settle_s, light), Load(made.calm_from_s, calm_s, light)]
