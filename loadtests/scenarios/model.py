"""A scenario: workers, tenants with their clients, and policies to compare, from one YAML file.

Every name carries its unit and every number its bounds, so a typing error is a fault with a path; all faults of a file
are reported at once. *Load* is a multiple of capacity in worker time: a group at load 2 requests twice what the workers
could do for that group alone. Capacity is measured in the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from loadtests.scenarios.arrivals import Arrivals, Closed, Load, PositiveSeconds, Seconds, Span, Trace
from loadtests.scenarios.distributions import Distribution, Model, constant
from loadtests.scenarios.routers import Place, Routers
from loadtests.scenarios.validation import contradictions, messages_of
from services.cli.errors import LabError

NAMED = Path(__file__).parent
LARGEST_FILE_BYTES = 1_000_000
MAX_TENANTS = 100_000

PolicyName = Literal[
    "weir",
    "fifo",
    "bounded_fifo",
    "fifo_ttl",
    "round_robin_ttl",
    "round_robin_ttl_cancel",
    "vtc",
]

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.\-]+$")]
Milliseconds = Annotated[float, Field(ge=0, le=600_000)]
Weight = Annotated[float, Field(gt=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]


# ---- workers


class Failure(Span):
    """Workers of the group are down, slow by a factor, or frozen."""

    kind: Literal["down", "slow", "frozen"] = "down"
    """Frozen workers keep their requests, answer nothing, and continue afterwards. Not in the simulator."""
    factor: float = Field(2.0, ge=1, le=1000)
    workers: int | None = Field(None, ge=1, le=1000)
    """The number of workers, from the first; all by default."""


class WorkerGroup(Model):
    """Equal workers: the fields of both kinds."""

    count: int = Field(1, ge=1, le=1000)
    slots: int = Field(ge=1, le=4096)
    round_trip_ms: Milliseconds = 0.0
    """Time from a free slot to the next request in it; the worker's own queue (lookahead) hides it."""
    lookahead: int = Field(0, ge=0, le=1)
    failures: tuple[Failure, ...] = Field((), max_length=100)


class SlotWorkers(WorkerGroup):
    """Independent slots: prompt / prefill rate, then a fixed time per answer token."""

    kind: Literal["slots"]
    prefill_tokens_per_s: float = Field(ge=1, le=1e9)
    s_per_token: float = Field(gt=0, le=60)
    jitter: Share = 0.1
    """Service times are uniform between 1 - jitter and 1 + jitter of their length."""


class StepWorkers(WorkerGroup):
    """Continuous batching: sequences join and leave at every step, whose length depends on its content."""

    kind: Literal["steps"]
    base_ms: float = Field(gt=0, le=60_000)
    per_sequence_ms: Milliseconds = 0.0
    per_prefill_token_ms: float = Field(0.0, ge=0, le=1000)
    chunk_tokens: int = Field(512, ge=1, le=1_000_000)
    """The most prompt tokens that one step reads."""


Workers = Annotated[SlotWorkers | StepWorkers, Field(discriminator="kind")]


# ---- tenants


class Retries(Model):
    """What a client does after a refusal, a failure or its timeout."""

    attempts: int = Field(default=0, ge=0, le=100)
    """The most retries."""
    wait: Literal["immediate", "backoff", "hint", "never"] = "never"
    """`hint` obeys the retry hint, and backs off without one."""
    base_s: PositiveSeconds = 0.5
    """First wait of the backoff; it doubles, with full jitter (uniform from 0)."""
    at_most_s: PositiveSeconds = 30.0
    keeps_deadline: bool = False
    """Whether a retry keeps the rest of the deadline; otherwise it has a new one."""
    impatient: Share = 0.0
    """Share of the clients that retry at once, whatever `wait` says."""
    repeats: bool = False
    """Whether a retry has the same bytes and the same connection as the try before; otherwise its prompt is new. The
    simulator has neither bytes nor connections: there each retry is judged like a new request."""

    @model_validator(mode="after")
    def _there_are_retries(self) -> Self:
        if (self.impatient or self.repeats) and not self.attempts:
            raise ValueError("impatient and repeats need attempts")
        return self


class TenantGroup(Model):
    """One tenant, or `count` equal tenants that share the group's rate evenly."""

    name: Name
    count: int = Field(1, ge=1, le=MAX_TENANTS)
    weight: Weight = 1.0
    """Of each tenant within its class."""
    tenant_class: Name = Field("standard", alias="class")
    arrivals: Arrivals
    prompt_tokens: Distribution = constant(200)
    context_tokens: Distribution = constant(0)
    completion_tokens: Distribution = constant(100)
    """Length of the uncut answers. Policies do not see it."""
    max_tokens: int = Field(1024, ge=1, le=1_000_000)
    open_ended: Share = 0.0
    """Share of requests that set no limit of the answer, in the simulator."""
    deadline_s: Distribution = constant(10.0)
    client_timeout_s: Distribution | None = None
    """When the client disconnects; by default at its deadline."""
    retries: Retries = Retries()
    stream: Share = 0.0
    """Share of requests that ask for a stream. The simulator treats all alike."""
    ask: Share = 0.0
    """Share of requests to `/ask`; the rest are whole chat answers."""
    max_level: int = Field(0, ge=0, le=10)
    may_clamp: bool = False
    routers: tuple[Place, ...] = Field((), max_length=64)
    """The routers that its requests reach, each equally often; by default as `routers.ingress` says."""

    @model_validator(mode="after")
    def _no_request_is_both(self) -> Self:
        if self.ask and self.ask + self.stream > 1:
            raise ValueError("ask and stream are shares of the same requests: together at most 1")
        return self

    @model_validator(mode="after")
    def _a_trace_by_client_makes_its_own_tenants(self) -> Self:
        if isinstance(self.arrivals, Trace) and self.count > 1:
            raise ValueError("a trace is replayed by one tenant, or by_client; count must be 1")
        return self


class TenantClass(Model):
    """A class of tenants: its weight among the classes, and its guaranteed share."""

    name: Name
    weight: Weight = 1.0
    floor: Share = 0.0


# ---- comparison


class PolicyChoice(Model):
    """A policy, optionally with its own settings and name."""

    policy: PolicyName
    label: str = Field(default="", max_length=60)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Override those under `weir`; for the baselines: `queue_size`."""
    max_level: int | None = Field(default=None, ge=0, le=10)
    """The deepest degradation level of any tenant; 0 disables degradation."""
    may_clamp: bool | None = None
    """Overrides all tenants."""
    routers: dict[str, Any] = Field(default_factory=dict)
    """Other values of the scenario's `routers`, such as `{count: 1}`."""

    @property
    def name(self) -> str:
        return self.label or self.policy

    def routers_of(self, scenario: Scenario) -> Routers | None:
        """The routers that this policy runs at. Raises ValidationError for a wrong value; see `_parts_agree`."""
        if scenario.routers is None:
            return None
        given = {**scenario.routers.model_dump(), **self.routers}
        if self.policy != "weir" or given["count"] == 1:
            given |= {"count": 1, "faults": ()}
        return Routers.model_validate(given)


def _name_is_choice(given: Any) -> Any:
    return {"policy": given} if isinstance(given, str) else given


class Sweep(Model):
    """Repeat the scenario at each of these total loads of the swept tenants, in proportion."""

    loads: tuple[Load, ...] = Field(min_length=1, max_length=100)
    tenants: tuple[Name, ...] = ()
    """The swept groups; by default all with a rate."""


# ---- figures and stages

StageName = Literal["simulator", "world", "processes", "locust", "console"]


class Window(Span):
    """A part of the run with its own row."""

    name: Name


class Must(Model):
    """A target of one figure, for the run or a window, all or one tenant, some or all stages."""

    figure: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[a-z0-9_]+$")]
    of: Name | None = None
    window: Name | None = None
    at_least: float | None = None
    at_most: float | None = None
    stages: tuple[StageName, ...] = ()
    note: str = Field("", max_length=200)

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("needs either at_least or at_most")
        return self


class Turn(Model):
    """One slider of the console. The name selects its effect and the default title and bounds."""

    name: Literal[
        "intensity", "deadline_ms", "leaving", "seconds", "outage_s", "slow_factor", "retries", "obey_hints"
    ]  # fmt: skip
    title: str = Field("", max_length=60)
    low: float | None = None
    high: float | None = None
    default: float | None = None
    of: tuple[Name, ...] = ()
    """The groups whose total load `intensity` sets; by default all."""
    during: Name | None = None
    """The window in which it applies; by default the whole run."""


def _name_is_turn(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


class Variant(Model):
    """How one stage differs: other values, or why it cannot play this scenario."""

    instead: dict[Annotated[str, Field(max_length=200)], Any] = Field(default_factory=dict, max_length=50)
    """Other values by their path in the file: `duration_s`, or `workers.0.failures`."""
    without: str = Field("", max_length=300)
    sliders: tuple[Annotated[Turn, BeforeValidator(_name_is_turn)], ...] = Field((), max_length=16)


class Scenario(Model):
    """A whole experiment."""

    title: str = Field(min_length=1, max_length=200)
    about: str = Field("", max_length=5000)
    question: str = Field("", max_length=300)
    """What it answers, in one sentence."""
    watch: tuple[Annotated[str, Field(max_length=500)], ...] = Field((), max_length=10)
    settle_s: float = Field(3.0, ge=0, le=1000)
    """The share on time after the last fault counts from this many seconds after its end."""
    alone: tuple[Name, ...] = ()
    """Tenants that are measured alone first, for comparison."""
    windows: tuple[Window, ...] = Field((), max_length=10)
    must: tuple[Must, ...] = Field((), max_length=50)
    stages: dict[StageName, Variant] = Field(default_factory=dict)
    seed: int = Field(1, ge=0, le=2**32)
    seeds: tuple[Annotated[int, Field(ge=0, le=2**32)], ...] = Field((), max_length=10_000)
    """Repeat with each of these; by default only `seed`."""
    duration_s: float = Field(gt=0, le=1e6)
    warm_up_s: Seconds = 3.0
    cool_down_s: Seconds = 3.0
    """Only arrivals between warm-up and cool-down count."""
    bucket_s: float = Field(1.0, ge=0.05, le=3600)
    """Resolution of the time series."""
    workers: tuple[Workers, ...] = Field(min_length=1, max_length=100)
    routers: Routers | None = None
    """Several routers; by default there is one, beside its workers. In the simulator."""
    cache_silent: tuple[Span, ...] = Field((), max_length=100)
    """When the passage cache does not answer. Not in the simulator."""
    classes: tuple[TenantClass, ...] = Field((TenantClass(name="standard"),), max_length=32)
    tenants: tuple[TenantGroup, ...] = Field(min_length=1, max_length=1000)
    quality: tuple[Share, ...] = Field((1.0, 0.9, 0.8, 0.65, 0.5), min_length=1, max_length=11)
    """An answer's worth by degradation level; the last value applies to all deeper levels."""
    policies: tuple[Annotated[PolicyChoice, BeforeValidator(_name_is_choice)], ...] = Field(
        (PolicyChoice(policy="weir"),), min_length=1, max_length=32
    )
    weir: dict[str, Any] = Field(default_factory=dict)
    sweep: Sweep | None = None

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if faults := contradictions(self):
            raise ValueError("; ".join(faults))
        return self

    def at_distance(self, half_trip_ms: float) -> Scenario:
        """The scenario with its workers so far from the router, for each way."""
        workers = tuple(group.model_copy(update={"round_trip_ms": 2 * half_trip_ms}) for group in self.workers)
        return self.model_copy(update={"workers": workers})

    @property
    def runs(self) -> tuple[int, ...]:
        return self.seeds or (self.seed,)

    @property
    def slots(self) -> int:
        return sum(group.count * group.slots for group in self.workers)

    @property
    def worker_count(self) -> int:
        return sum(group.count for group in self.workers)

    @property
    def tenant_count(self) -> int:
        return sum(group.count for group in self.tenants)

    def with_seed(self, seed: int) -> Scenario:
        return self.model_copy(update={"seed": seed, "seeds": ()})

    def at_load(self, load: float) -> Scenario:
        """The scenario with the swept tenants at this total load."""
        swept = self._swept()
        total = sum(group.arrivals.load or 0.0 for group in swept if not isinstance(group.arrivals, Closed))
        if not total:
            raise LabError("A sweep needs tenants whose arrivals have a load.")
        names = {group.name for group in swept}
        tenants = tuple(_times(group, load / total) if group.name in names else group for group in self.tenants)
        return self.model_copy(update={"tenants": tenants, "sweep": None})

    def _swept(self) -> list[TenantGroup]:
        chosen = self.sweep.tenants if self.sweep else ()
        return [group for group in self.tenants if not chosen or group.name in chosen]


def _times(group: TenantGroup, factor: float) -> TenantGroup:
    if isinstance(group.arrivals, Closed) or group.arrivals.load is None:
        return group
    arrivals = group.arrivals.model_copy(update={"load": group.arrivals.load * factor})
    return group.model_copy(update={"arrivals": arrivals})


# ---- reading


def load(path_or_name: str | Path) -> Scenario:
    """A scenario from a file, or by the name of one that ships with Weir. Raises LabError with every fault."""
    path = find(path_or_name)
    return parse(load_raw(path), name=path.name, folder=path.parent)


def parse(raw: Any, *, name: str = "scenario", folder: Path | None = None) -> Scenario:
    try:
        return Scenario.model_validate(raw, context={"folder": folder})
    except ValidationError as error:
        faults = messages_of(raw, error)
        count = f"{len(faults)} faults" if len(faults) > 1 else "a fault"
        raise LabError(f"{name} has {count}:", notes=faults) from None


def names() -> list[str]:
    """The scenarios that ship with Weir."""
    return sorted(path.stem for path in NAMED.glob("*.yaml"))


def find(path_or_name: str | Path) -> Path:
    for path in (Path(path_or_name), NAMED / f"{path_or_name}.yaml"):
        if path.is_file():
            return path
    raise LabError(f"There is no scenario {path_or_name}.", notes=(f"Those that ship: {', '.join(names())}.",))


def load_raw(path: Path) -> Any:
    """The parsed YAML, without validation."""
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise LabError(f"{path} is larger than {LARGEST_FILE_BYTES:,} bytes: that is no scenario.")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LabError(f"{path} is not YAML.", notes=tuple(str(error).splitlines())) from None
