"""The storm bench's words: `GET`, `POST` and `DELETE /storm` of its process, `/console/storm` through the router.

One run at a time. A person's wish (`StartRun`) names a scenario and moves some of its sliders; `State` says what goes
on, second by second, and what the last runs came to. Counts are of attempts: each ends exactly once, so

    sent = on_time + late + refused + failed + gone + open

holds at every moment. `asked` and `answered` count people instead, who may try several times.
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
    """The body of POST. A slider that is not named stays where the scenario has it."""

    scenario: Name
    sliders: Annotated[dict[Name, float], Meta(max_length=MAX_SLIDERS)] = {}


class Started(msgspec.Struct, frozen=True):
    """What POST answers, with 202."""

    run: str


class Stopped(msgspec.Struct, frozen=True):
    """What DELETE answers; null where nothing ran."""

    stopped: str | None


class Slider(msgspec.Struct, frozen=True):
    """One thing that may be turned. A `switch` is 0 or 1."""

    name: str
    title: str
    min: float
    max: float
    step: float
    default: float
    unit: str = ""
    kind: Literal["range", "switch"] = "range"


class ScenarioDescription(msgspec.Struct, frozen=True):
    """One scenario, as a button shows it."""

    name: str
    title: str
    caption: str
    watch: list[str]
    sliders: list[Slider]
    available: bool
    why_not: str


class Mark(msgspec.Struct, frozen=True):
    """Something changes, so many seconds after the beginning."""

    s: float
    what: str


class Counts(msgspec.Struct, kw_only=True):
    """How attempts ended. `held_back`: never sent, because the bench has bounds of its own."""

    sent: int = 0
    on_time: int = 0
    late: int = 0
    refused: int = 0
    failed: int = 0
    gone: int = 0
    held_back: int = 0


class Second(Counts, kw_only=True):
    """One second. `sent` counts by when it was meant to be sent, endings by when they came.

    The times are of answers that came in this second; `waiting` and `level` are the router's own, the last it told.
    """

    s: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    waiting: int | None = None
    level: int | None = None
    sources: dict[str, int] = {}


class TenantCounts(Counts, kw_only=True):
    """One tenant. `answered`: people who got an answer on time, by whichever attempt."""

    id: str
    asked: int = 0
    answered: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None


class PolicySwitches(msgspec.Struct, frozen=True):
    """The router's switches, as its frames tell them."""

    admission: bool
    fairness: bool
    cancellation: bool


class Running(Counts, kw_only=True):
    """The run that goes on."""

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
    """What a run came to. Shares are of 1; null where nobody told.

    `goodput_share`: answers on time, by the capacity of as many seconds as load was sent for; it passes 1 where the
    router shortened answers. `wasted_share`: the router's wasted worker seconds, by the slot seconds of the run.
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
    """A run that is over, with everything that is kept of it."""

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
    """What no wish can pass."""

    rate_per_s: float
    connections: int
    seconds: float


class State(msgspec.Struct, frozen=True):
    """What GET answers."""

    running: Running | None
    scenarios: list[ScenarioDescription]
    runs: list[Summary]
    bounds: Bounds
