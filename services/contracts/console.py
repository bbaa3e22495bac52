"""Router -> the console page: the stream of `GET /console/events`, and a request's life.

A frame is a complete picture, bounded whatever the load, so a viewer may miss any number of them. Lists that are cut
say how much is missing. Times are milliseconds, work is token-equivalents, None is what is not known yet.
"""

from __future__ import annotations

from typing import Literal

import msgspec

What = Literal["admit", "degrade", "yield", "refuse", "expire", "served", "late", "gone", "failed"]
Position = Literal["new", "now", "next", "later", "away"]
Progress = Literal["waiting", "running", "ended"]


class Hello(msgspec.Struct, frozen=True):
    """The first event of a stream: what this router offers, and the bounds of its frames."""

    lab: bool
    storm: bool  # /console/storm is there
    policy: bool  # POST /console/policy is there
    tenants_bound: int
    workers_bound: int
    decisions_bound: int
    frame_ms: int


class PolicyNow(msgspec.Struct, frozen=True):
    """Which mechanisms are on."""

    admission: bool = True
    fairness: bool = True
    cancellation: bool = True


class OfClassNow(msgspec.Struct, frozen=True):
    """A class of tenants: where it stands on the ladder, and its part of the capacity."""

    name: str
    level: int
    held: bool  # an operator holds it there
    weight: float
    share: float


class Inflight(msgspec.Struct, frozen=True):
    """Requests at workers, and MAX_INFLIGHT."""

    now: int
    cap: int


class WaitingNow(msgspec.Struct, frozen=True):
    """Requests in line, over all tenants."""

    requests: int
    bound: int
    cost_tokens: float


class Totals(msgspec.Struct, frozen=True):
    """Since the start, over all tenants: the counters of /metrics at the same moment."""

    outcomes: dict[str, int]
    admitted: int
    degraded: int
    served_tokens: float
    worker_s: float
    wasted_s: float


class Latency(msgspec.Struct, frozen=True):
    """Of what was served within the last second, from arrival to the end of the answer."""

    count: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    deadline_p50_ms: float | None = None
    of_deadline_p95: float | None = None


class FirstToken(msgspec.Struct, frozen=True):
    """Of the streams among these, from arrival to the first output."""

    count: int
    p50_ms: float | None = None
    p95_ms: float | None = None


class TenantNow(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """One tenant's line. `place` counts from whoever is visited next; None: it has nothing that could start."""

    id: str
    class_name: str
    weight: float
    waiting: int
    bound: int
    cost_tokens: float
    deficit_tokens: float
    debt_tokens: float
    quantum_tokens: float
    running: int
    share: float
    asked_tokens_per_s: float
    got_tokens_per_s: float
    position: Position
    place: int | None
    heads: list[float]  # ages of the first in line, as shares of their deadlines


class OtherTenants(msgspec.Struct, frozen=True):
    """Those who are not listed."""

    tenants: int
    waiting: int


class RunningNow(msgspec.Struct, frozen=True):
    """A request at a worker, its age as a share of its deadline."""

    id: str
    tenant: str
    of_deadline: float


class Batch(msgspec.Struct, frozen=True):
    """What the worker announced at the last probe."""

    size: int | None
    step_ms: float | None


class WorkerNow(msgspec.Struct, frozen=True):
    """One worker, by the router's own ledger."""

    name: str
    kind: str
    healthy: bool
    draining: bool
    resting: bool
    leaving: bool
    slots: int
    lookahead: int
    inflight: int
    work_tokens: float
    batch: Batch
    requests: list[RunningNow]


class Decision(msgspec.Struct, frozen=True):
    """Something was decided. `n` rises by one with each, so that frames may repeat themselves."""

    n: int
    id: str
    at_ms: int
    tenant: str
    what: What
    outcome: str | None  # None: it has only been admitted
    level: int
    why: str
    wait_ms: float | None
    predicted_ms: float | None


class Frame(msgspec.Struct, frozen=True):
    """The whole picture at one moment."""

    seq: int
    at_ms: int
    uptime_s: float
    draining: bool
    level: int
    classes: list[OfClassNow]
    policy: PolicyNow
    inflight: Inflight
    waiting: WaitingNow
    totals: Totals
    latency: Latency
    first_token: FirstToken
    capacity_tokens_per_s: float | None
    got_tokens_per_s: float
    tenants: list[TenantNow]
    other_tenants: OtherTenants
    workers: list[WorkerNow]
    other_workers: int
    decisions: list[Decision]
    decided: int
    decisions_left_out: int


class Moment(msgspec.Struct, frozen=True):
    """Something that happened to a request, so long after its arrival. `detail` is a sentence for people."""

    at_ms: float
    what: str
    detail: str = ""


class Numbers(msgspec.Struct, frozen=True):
    """The numbers that decided about a request, and what came of it."""

    prompt_tokens: int | None = None
    context_tokens: int | None = None
    max_tokens: int | None = None
    granted_tokens: int | None = None
    completion_tokens: int | None = None
    charge_tokens: float | None = None
    predicted_wait_ms: float | None = None
    predicted_wait_q95_ms: float | None = None
    counted_wait_ms: float | None = None  # what its deadline was tested with at the door
    counted_service_ms: float | None = None
    waited_ms: float | None = None
    total_ms: float | None = None
    first_token_ms: float | None = None
    retrieval_source: str | None = None
    retrieval_ms: float | None = None
    worker: str | None = None
    first_worker: str | None = None
    attempts: int = 0
    queue_depth: int | None = None
    hint_ms: int | None = None
    margin: float | None = None


class RequestLife(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """`GET /console/requests/ID`: one request from its arrival to its end, or to now."""

    id: str
    tenant: str
    model: str
    class_name: str
    deadline_ms: float
    level: int
    state: Progress
    outcome: str | None
    message: str
    degraded: list[str]
    timeline: list[Moment]
    numbers: Numbers
