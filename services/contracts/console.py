"""Router -> console: the events of `GET /console/events`, and the timeline of one request.

Each frame is complete and bounded, so a viewer may miss any number of them. A list that is cut states how many entries
are missing. Times are milliseconds, work is token-equivalents, None means not known yet.
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
    storm: bool  # `/console/storm` exists
    policy: bool  # `POST /console/policy` exists
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
    """A class of tenants: its level of the degradation ladder, and its share of the capacity."""

    name: str
    level: int
    held: bool  # an operator holds the level
    weight: float
    share: float


class Inflight(msgspec.Struct, frozen=True):
    """Requests at workers, and MAX_INFLIGHT."""

    now: int
    cap: int


class WaitingNow(msgspec.Struct, frozen=True):
    """Queued requests of all tenants."""

    requests: int
    bound: int
    cost_tokens: float


class Totals(msgspec.Struct, frozen=True):
    """Totals since the start, over all tenants; equal to the counters of /metrics at the same moment."""

    outcomes: dict[str, int]
    admitted: int
    degraded: int
    served_tokens: float
    worker_s: float
    wasted_s: float


class Latency(msgspec.Struct, frozen=True):
    """Latency of the answers served within the last second, from arrival to the end of the answer."""

    count: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    deadline_p50_ms: float | None = None
    of_deadline_p95: float | None = None


class FirstToken(msgspec.Struct, frozen=True):
    """Time to first token of the streams among these answers."""

    count: int
    p50_ms: float | None = None
    p95_ms: float | None = None


class TenantNow(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """One tenant. `place` is its position in the service order, 0 for the next; None: it has nothing that can start."""

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
    heads: list[float]  # ages of its first queued requests, as shares of their deadlines


class OtherTenants(msgspec.Struct, frozen=True):
    """Sums over the tenants that the frame does not list."""

    tenants: int
    waiting: int


class RunningNow(msgspec.Struct, frozen=True):
    """A request at a worker. `of_deadline` is its age as a share of its deadline."""

    id: str
    tenant: str
    of_deadline: float


class Batch(msgspec.Struct, frozen=True):
    """What the worker reported at the last probe. `waiting` and `kv_share`, its used share of memory, are another
    server's.
    """

    size: int | None
    step_ms: float | None
    waiting: int | None = None
    kv_share: float | None = None


class WorkerNow(msgspec.Struct, frozen=True):
    """One worker, by the router's ledger."""

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


class SharedClassNow(msgspec.Struct, frozen=True):
    """A class at one of several routers: its level and turn, in tokens per unit of weight, and the slots it wants."""

    name: str
    level: float
    lowest: float | None  # of the routers that wait; None: not known
    turn: float
    wanted: int
    light: int  # of these, for tenants that ask for less than their share


class SharedPoolNow(msgspec.Struct, frozen=True):
    """A pool that several routers share. `exchange_age_s` is None before the store's first answer."""

    name: str
    routers: int
    exchange_age_s: float | None
    exchange_stale: bool  # so old that the router decides by its own figures
    planned_slots: int
    classes: list[SharedClassNow]


class LeaseNow(msgspec.Struct, frozen=True):
    """What one worker lends to this router."""

    worker: str
    up: bool
    borrowed: int
    in_flight: int
    slots: int  # of the worker, over all routers
    recalled: bool  # slots that are not in use are wanted back


class SharingNow(msgspec.Struct, frozen=True):
    """What one of several routers has borrowed. `router` is its name."""

    router: str
    pools: list[SharedPoolNow]
    other_pools: int
    leases: list[LeaseNow]
    other_leases: int


class Decision(msgspec.Struct, frozen=True):
    """A decision about a request. `n` rises by one with each, so that a viewer can skip those it has."""

    n: int
    id: str
    at_ms: int
    tenant: str
    what: What
    outcome: str | None  # None: the request was only admitted
    level: int
    why: str
    wait_ms: float | None
    predicted_ms: float | None


class Frame(msgspec.Struct, frozen=True):
    """The router at one moment. `sharing` is absent unless it is one of several."""

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
    sharing: SharingNow | msgspec.UnsetType = msgspec.UNSET


class Moment(msgspec.Struct, frozen=True):
    """An event of a request, `at_ms` after its arrival. `detail` is a sentence for the operator."""

    at_ms: float
    what: str
    detail: str = ""


class Numbers(msgspec.Struct, frozen=True):
    """The numbers that decided about a request, and its result."""

    prompt_tokens: int | None = None
    context_tokens: int | None = None
    max_tokens: int | None = None
    granted_tokens: int | None = None
    completion_tokens: int | None = None
    charge_tokens: float | None = None
    predicted_wait_ms: float | None = None
    predicted_wait_q95_ms: float | None = None
    counted_wait_ms: float | None = None  # the wait that admission tested the deadline with
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
