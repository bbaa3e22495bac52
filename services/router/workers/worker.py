"""One worker: its reported state, its health, and the ledger of the requests that it holds.

The ledger is the router's own and synchronous: polled figures lag, and routers that trusted them overshot or stalled
(vLLM #49538, llm-d #2100). A worker's reports only set the bounds: slots (learned with `slots: auto`), one look-ahead
request in its own queue, and KV tokens for prompts and answers. Other servers report on a metrics page, if at all
(`enginestate.py`).

While these do not shrink, it holds at most `slots + lookahead` requests, and at most `kv_tokens` by prompt and longest
answer. If they shrink nothing is taken back; nothing new is sent until what is held fits again.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING

from services.core.adaptive import AdaptiveLimit
from services.core.pace import Pace
from services.core.request import Request
from services.router.upstreams.call import Probe, Upstream
from services.router.workers.enginestate import ReportedState
from services.router.workers.health import Health
from services.router.workers.workersfile import WorkerSpec

if TYPE_CHECKING:
    from services.router.workers.workerlease import WorkerLease

MIN_LIMIT = 1
MIN_WORK_TOKENS = 1.0


class Availability(IntEnum):
    """A worker's capacity now. The order matters: only values above DOWN are live."""

    DOWN = 0
    FULL = 1
    AHEAD = 2
    FREE = 3


DOWN, FULL, AHEAD, FREE = Availability

Held = tuple[float, int]
"""(work tokens, memory tokens) of a request when it was taken; the same values are released."""


class Worker:
    """State and ledger; `Fleet` decides. `max_limit` bounds a learned limit.

    `is_shared`: several routers share its slots. `slots` is then what it lends to this one, which may be 0.
    """

    __slots__ = (
        "ahead_always",
        "ahead_open",
        "announced_slots",
        "availability",
        "batch",
        "draining",
        "engine",
        "health",
        "held",
        "held_back",
        "inflight",
        "is_shared",
        "kv_held_tokens",
        "kv_tokens",
        "last_used",
        "lease",
        "leaving",
        "limit",
        "lookahead",
        "max_limit",
        "models",
        "name",
        "opened_until",
        "paces",
        "pools",
        "prefill_ms_per_token",
        "resting",
        "slots",
        "spec",
        "step_ms",
        "strained",
        "upstream",
        "work_tokens",
    )

    def __init__(self, spec: WorkerSpec, upstream: Upstream, *, max_limit: int = 64, is_shared: bool = False) -> None:
        self.name = spec.name
        self.is_shared = is_shared
        self.lease: WorkerLease | None = None
        """What this router has borrowed of it; None before the first answer of a worker that lends."""
        self.announced_slots = 0
        """Its own, over all routers, as it reports them."""
        self.max_limit = max_limit
        self.health = Health()
        self.draining = False
        self.leaving = False
        """Removed from the list: it finishes what it holds and is then closed."""
        self.held_back = False
        """Drained by an operator."""
        self.resting = False
        """It has just refused, and rests for the delay it named."""
        self.held: dict[Request, Held] = {}
        self.inflight = 0
        self.work_tokens = 0.0
        self.kv_held_tokens = 0
        self.last_used = 0
        self.ahead_open = False
        """One of its slots will be free so soon that a request may be sent ahead (`Fleet.look_ahead`)."""
        self.opened_until = 0.0
        """When that slot is expected to be free, in the event loop's seconds."""
        self.availability = DOWN
        self.pools: tuple[str, ...] = ()
        self.limit: AdaptiveLimit | None = None
        self.paces = Pace()
        self.slots = 0
        self.kv_tokens: int | None = None
        self.step_ms = self.prefill_ms_per_token = 0.0
        self.batch: int | None = None
        """Sequences in its engine at the last probe."""
        self.engine = ReportedState()
        self.strained = False
        """Its engine reports a queue of its own, or too little memory: nothing is sent ahead."""
        self.models: tuple[str, ...] = ()
        self.adopt(spec, upstream)

    @property
    def url(self) -> str:
        return self.spec.url

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def healthy(self) -> bool:
        """Whether it answers probes and is not ejected."""
        return self.health.up

    @property
    def live(self) -> bool:
        """Whether it takes requests, busy or not."""
        return self.health.up and not self.draining and not self.leaving and not self.held_back

    @property
    def lease_name(self) -> str:
        """Tells its lease from all others, also from that of a worker of the same name at another address."""
        return f"{self.name} {self.spec.url} {self.spec.desk or ''}".rstrip()

    @property
    def own_slots(self) -> int:
        """Its slots, over all routers."""
        return self.announced_slots if self.is_shared else self.slots

    @property
    def places(self) -> int:
        """Requests that it may hold, the look-ahead included."""
        return self.slots + self.lookahead

    def adopt(self, spec: WorkerSpec, upstream: Upstream) -> None:
        """Take over a new entry of the worker list. What it holds and what was learned stays."""
        self.spec, self.upstream = spec, upstream
        ahead = 0 if self.is_shared else spec.sends_ahead
        self.lookahead = 1 if ahead == "auto" else ahead
        self.ahead_always = ahead == 1
        self.models = tuple(spec.models) or self.models
        if spec.slots == "auto":
            if self.limit is None and not self.engine.slots:
                self.limit = _limit(self.max_limit, self.inflight)
            self.slots = min(self.engine.slots, self.max_limit) if self.limit is None else self.limit.cap
        else:
            self.limit = None
            self.slots = self.slots if spec.slots is None else spec.slots

    def learn(self, seen: Probe) -> bool:
        """Apply its reported state where the list has no value; returns whether anything changed."""
        before = (self.slots, self.announced_slots, self.models, self.draining, self.kv_tokens)
        if self.spec.desk is None:  # else its desk announces them, in each grant
            self.announced_slots = seen.slots
        if self.spec.slots == "auto":
            self._size_limit(seen)
        elif self.spec.slots is None and not self.is_shared:  # those of a worker that lends are set by `LeasedFleet`
            self.slots = seen.slots
        if not self.spec.models:
            self.models = seen.models
        self.draining = seen.draining
        self.engine.learn(seen.report, self.kv_held_tokens, self.inflight, self.slots)
        self.kv_tokens = seen.kv_tokens if seen.report is None else self.engine.kv_tokens
        self.strained = self.engine.strained
        self.batch = seen.batch
        self.step_ms = seen.step_ms or self.step_ms
        self.prefill_ms_per_token = seen.prefill_ms_per_token or self.prefill_ms_per_token
        return before != (self.slots, self.announced_slots, self.models, self.draining, self.kv_tokens)

    def _size_limit(self, seen: Probe) -> None:
        """`slots: auto`: as many as the engine says that it batches; else learned, and less if it reports a queue."""
        if seen.slots:
            self.limit, self.slots = None, min(seen.slots, self.max_limit)
        elif self.limit is not None and seen.report is not None and seen.report.waiting:
            self.limit.crowded()
            self.slots = self.limit.cap

    def current_availability(self) -> Availability:
        """Its capacity by the ledger, DOWN if it is not live."""
        return self.offers() if self.live else DOWN

    def offers(self) -> Availability:
        """Its capacity, assuming that it is live."""
        if self.resting:
            return FULL
        if self.inflight < self.slots:
            return FREE
        opens = (self.ahead_always or self.ahead_open) and not self.strained
        return AHEAD if opens and self.inflight < self.slots + self.lookahead else FULL

    def has_room(self, kv_tokens: int) -> bool:
        """Whether so many more tokens fit into its reported memory."""
        return self.kv_tokens is None or self.kv_held_tokens + kv_tokens <= self.kv_tokens

    def pace(self, seconds: float, prompt_tokens: float, completion_tokens: float) -> float | None:
        """The pace of an answer, from dispatch to end, for a learned limit; None without one."""
        limit = self.limit
        if limit is None:
            return None
        alone = limit.cap == limit.min_limit and self.inflight <= limit.min_limit
        return self.paces.of(seconds, prompt_tokens, completion_tokens, alone=alone)

    # ---- the ledger

    def hold(self, request: Request, work_tokens: float, kv_tokens: int) -> None:
        """Add a request to the ledger. Raises RuntimeError if it is in it, or above a learned limit."""
        if request in self.held:
            raise RuntimeError(f"{self!r} holds {request!r} already")
        if self.limit is not None and not self.limit.try_take():
            raise RuntimeError(f"{self!r} was given a request above its limit")
        self.held[request] = (work_tokens, kv_tokens)
        self.inflight += 1
        assert self.inflight <= self.slots + self.lookahead, f"{self!r} was given {request!r} without a place for it"
        if self.inflight > self.slots:
            self.ahead_open = False
        self.work_tokens += work_tokens
        self.kv_held_tokens += kv_tokens

    def release(self, request: Request, pace: float | None, *, overloaded: bool) -> bool:
        """Remove a request; returns whether the slots changed. Raises RuntimeError if it is not in the ledger."""
        held = self.held.pop(request, None)
        if held is None:
            raise RuntimeError(f"{self!r} does not hold {request!r}: it was given back twice, or never taken")
        self.inflight -= 1
        self.ahead_open = False  # the slot that it was opened for is free now, or taken by the request sent ahead
        work_tokens, kv_tokens = held
        self.kv_held_tokens -= kv_tokens
        if self.inflight:
            self.work_tokens -= work_tokens
            assert self.inflight == len(self.held), self._fault(request)
            assert self.kv_held_tokens >= 0, self._fault(request)
        else:
            self.work_tokens = 0.0  # sums of floats drift
            assert not self.held, self._fault(request)
            assert not self.kv_held_tokens, self._fault(request)
        if self.limit is None:
            return False
        sample = pace if pace is not None and 0 < pace < inf else None
        self.limit.give_back(sample, overloaded=overloaded)
        before, self.slots = self.slots, self.limit.cap
        return before != self.slots

    def _fault(self, request: Request) -> str:
        held = f"{len(self.held)} held, {self.kv_held_tokens} KV tokens"
        return f"{self!r} counts {self.inflight} in flight, and {held}: {request!r}"

    def __repr__(self) -> str:
        state = "leaving" if self.leaving else "draining" if self.draining else "up" if self.healthy else "down"
        held = f"{self.inflight}/{self.slots}+{self.lookahead}, {self.work_tokens:g} tokens"
        return f"<Worker {self.name} {state}, {held}>"


def _limit(max_limit: int, inflight: int) -> AdaptiveLimit:
    limit = AdaptiveLimit(min_limit=min(MIN_LIMIT, max_limit), max_limit=max_limit)
    limit.inflight = inflight  # taken before there was a limit
    return limit
