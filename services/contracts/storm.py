"""The storm bench's API: `GET`, `POST` and `DELETE /storm` of its process, `/console/storm` through the router.

One run at a time. `StartRun` names a scenario and sets some of its sliders; `State` has the current run second by
second, and a summary of the last runs. Counts are of attempts, and each attempt ends exactly once:

    sent = on_time + late + refused + failed + gone + open

`asked` and `answered` count users instead, and a user may try several times.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_SLIDERS = 16
MAX_KEPT_RUNS = 20

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Phase = Literal["preparing", "storming", "settling"]
Ended = Literal["done", "stopped", "failed"]


class StartRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST. Other sliders keep the scenario's default."""

    scenario: Name
    sliders: Annotated[dict[Name, float], Meta(max_length=MAX_SLIDERS)] = {}


class Started(msgspec.Struct, frozen=True):
    """The answer to POST, with status 202."""

    run: str


class Stopped(msgspec.Struct, frozen=True):
    """The answer to DELETE; null if nothing was running."""

    stopped: str | None


class Slider(msgspec.Struct, frozen=True):
    """One adjustable value. A `switch` is 0 or 1."""

    name: str
    title: str
    min: float
    max: float
    step: float
    default: float
    unit: str = ""
    kind: Literal["range", "switch"] = "range"


class ScenarioDescription(msgspec.Struct, frozen=True):
    """One scenario, as the console's button shows it."""

    name: str
    title: str
    caption: str
    watch: list[str]
    sliders: list[Slider]
    available: bool
    why_not: str


class Mark(msgspec.Struct, frozen=True):
    """A change during the run, `s` seconds after its start."""

    s: float
    what: str


class Counts(msgspec.Struct, kw_only=True):
    """Attempts by their end. `held_back`: never sent, because of the bench's own limits."""

    sent: int = 0
    on_time: int = 0
    late: int = 0
    refused: int = 0
    failed: int = 0
    gone: int = 0
    held_back: int = 0


class Second(Counts, kw_only=True):
    """One second. `sent` counts by the planned send time, the ends by when they happened.

    The times are of answers that arrived in this second; `waiting` and `level` are the router's last reported values.
    """

    s: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    waiting: int | None = None
    level: int | None = None
    sources: dict[str, int] = {}


class TenantCounts(Counts, kw_only=True):
    """One tenant. `answered`: users with an answer on time, from whichever attempt."""

    id: str
    asked: int = 0
    answered: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None


class PolicySwitches(msgspec.Struct, frozen=True):
    """The router's switches, as its frames report them."""

    admission: bool
    fairness: bool
    cancellation: bool


class Running(Counts, kw_only=True):
    """The current run."""

    run: str
    scenario: str
    title: str
    caption: str
    watch: list[str]
    phase: Phase
    now: str
    began_at_ms: int
    elapsed_s: float
    seconds: float
    sliders: dict[str, float]
    capacity_per_s: float | None
    rate_per_s: float
    capped: bool
    open: int
    refused_by_code: dict[str, int]
    failed_by_code: dict[str, int]
    p50_ms: float | None
    p95_ms: float | None
    deadline_ms: float
    series: list[Second]
    tenants: list[TenantCounts]
    marks: list[Mark]


class Summary(Counts, kw_only=True):
    """The result of a run. Shares are fractions of 1; null where the value is not known.

    `goodput_share`: answers on time, divided by the capacity of the seconds with load; above 1 if the router shortened
    answers. `wasted_share`: the router's wasted worker seconds, divided by the slot seconds of the run.
    """

    run: str
    scenario: str
    title: str
    began_at_ms: int
    seconds: float
    lasted_s: float
    ended: Ended
    why: str
    sliders: dict[str, float]
    policy: PolicySwitches | None
    policy_changed: bool
    capacity_per_s: float | None
    capped: bool
    on_time_share: float | None
    goodput_share: float | None
    answered_share: float | None
    p50_ms: float | None
    p95_ms: float | None
    deadline_ms: float
    wasted_s: float | None
    wasted_share: float | None


class Run(Summary, kw_only=True):
    """A finished run, with all data that is kept."""

    caption: str
    watch: list[str]
    series: list[Second]
    tenants: list[TenantCounts]
    refused_by_code: dict[str, int]
    failed_by_code: dict[str, int]
    sources: dict[str, int]
    router_counted: dict[str, float]
    marks: list[Mark]
    worst_lag_ms: float


class Bounds(msgspec.Struct, frozen=True):
    """The bench's own limits."""

    rate_per_s: float
    connections: int
    seconds: float


class State(msgspec.Struct, frozen=True):
    """The answer to GET."""

    running: Running | None
    scenarios: list[ScenarioDescription]
    runs: list[Summary]
    bounds: Bounds
