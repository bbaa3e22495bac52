"""The console's frame: a projection of the router's own state, made on request. Making one changes nothing.

Bounds: MAX_DECISIONS, the bounds of `tables.py`, and the last LOOKED_AT served requests, which above 1,000 answers/s
cover less than a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from msgspec import UNSET

from services.contracts.console import (
    Decision,
    FirstToken,
    Frame,
    Inflight,
    Latency,
    OfClassNow,
    PolicyNow,
    Totals,
    WaitingNow,
)
from services.core.policies import Policies
from services.core.snapshot import PoolSnapshot
from services.router.console.sharing import Json, sharing_now
from services.router.console.tables import look, other_tenants, tenant_row, worker_row
from services.router.deciding.dispatcher import Dispatcher
from services.router.request import InferenceRequest
from services.router.telemetry.journal import Entry, Journal
from services.router.telemetry.metrics import RouterMetrics
from services.runtime.clock import unix_milliseconds
from services.runtime.drain import Drain

MAX_DECISIONS = 40
LOOKED_AT = 1000
LATENCY_S = 1.0
GOT_S = 2.0
STALE_S = 1.0
"""After a pause this long a frame does not count the decisions of the pause as left out."""


class Feed:
    """`sharing`: what a router that shares its workers adds to its state."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        journal: Journal,
        drain: Drain,
        sharing: Callable[[], Json] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._journal = journal
        self._drain = drain
        self._sharing = sharing
        self._began_at_ms = unix_milliseconds()
        self._seq = 0
        self._decided = 0
        self._made_at = -inf

    def frame(self, now: float) -> Frame:
        journal, seen = self._journal, look(now, self._dispatcher)
        scheduler, waiting = seen.scheduler, seen.scheduler.waiting
        at_ms = unix_milliseconds()
        classes = _classes(scheduler.pools)
        decisions, left_out = self._decisions(now, at_ms)
        journal.looked(now)
        served, since = journal.served_since(now - GOT_S, LOOKED_AT)
        self._seq += 1
        return Frame(
            seq=self._seq,
            at_ms=at_ms,
            uptime_s=round((at_ms - self._began_at_ms) / 1000, 1),
            draining=self._drain.draining,
            level=max((each.level for each in classes), default=0),
            classes=classes,
            policy=policy_now(scheduler.policies),
            inflight=Inflight(seen.inflight, seen.inflight_cap),
            waiting=WaitingNow(waiting.requests, waiting.bounds.requests, round(waiting.cost_tokens, 1)),
            totals=self._totals(),
            latency=_latency(now, served),
            first_token=_first_token(now, served),
            capacity_tokens_per_s=_capacity(scheduler.pools),
            got_tokens_per_s=_got(now - since, served),
            tenants=[tenant_row(tenant, place) for place, tenant in enumerate(scheduler.tenants)],
            other_tenants=other_tenants(scheduler),
            workers=[worker_row(worker) for worker in seen.workers],
            other_workers=seen.other_workers,
            decisions=decisions,
            decided=journal.decided,
            decisions_left_out=left_out,
            sharing=UNSET if self._sharing is None else sharing_now(self._sharing()),
        )

    def _totals(self) -> Totals:
        sums = self._metrics.sums
        return Totals(
            outcomes={outcome.value: count for outcome, count in sums.outcomes.items()},
            admitted=sums.admitted,
            degraded=sums.degraded,
            served_tokens=round(sums.served_tokens, 3),
            worker_s=round(self._journal.worker_s, 6),
            wasted_s=round(sums.wasted_s, 6),
        )

    def _decisions(self, now: float, at_ms: int) -> tuple[list[Decision], int]:
        """The decisions since the last frame, filled up with earlier ones, and how many are left out."""
        journal = self._journal
        since = self._decided if now - self._made_at <= STALE_S else journal.decided
        self._decided, self._made_at = journal.decided, now
        entries, left_out = journal.since(since, MAX_DECISIONS)
        return [_decision(entry, at_ms - int((now - entry.at) * 1000)) for entry in entries], left_out


def policy_now(policies: Policies) -> PolicyNow:
    return PolicyNow(policies.admission, policies.fairness, policies.cancellation)


def _classes(pools: Iterable[PoolSnapshot]) -> list[OfClassNow]:
    """Every class once: with several pools, as in the pool where its level is highest."""
    found: dict[str, OfClassNow] = {}
    for pool in pools:
        for of in pool.classes:
            known = found.get(of.name)
            if known is None or of.level > known.level:
                found[of.name] = OfClassNow(of.name, of.level, of.held, of.weight, round(of.share, 4))
    return list(found.values())


def _capacity(pools: Iterable[PoolSnapshot]) -> float | None:
    """The known capacity of all pools, in token-equivalents per second."""
    rates = [pool.rate_tokens_per_s for pool in pools if pool.rate_tokens_per_s is not None]
    return round(sum(rates), 1) if rates else None


Served = Sequence[tuple[float, InferenceRequest]]
"""(time of the end, request) of each, newest first."""


def _got(span_s: float, served: Served) -> float:
    """Served work per second, over the time in which no answer is missing: GOT_S or less."""
    return round(sum(request.charge_tokens for _, request in served if request.admitted) / max(span_s, 1e-3), 1)


def _latency(now: float, served: Served) -> Latency:
    of = [(at - request.arrived_at, request.deadline_ms) for at, request in served if at > now - LATENCY_S]
    if not of:
        return Latency(0)
    seconds = sorted(took_s for took_s, _ in of)
    shares = sorted(1000 * took_s / deadline_ms for took_s, deadline_ms in of)
    deadlines_ms = sorted(deadline_ms for _, deadline_ms in of)
    return Latency(
        count=len(of),
        p50_ms=milliseconds(_quantile(seconds, 0.5)),
        p95_ms=milliseconds(_quantile(seconds, 0.95)),
        deadline_p50_ms=round(_quantile(deadlines_ms, 0.5), 1),
        of_deadline_p95=round(_quantile(shares, 0.95), 4),
    )


def _first_token(now: float, served: Served) -> FirstToken:
    seconds = sorted(
        request.first_output_at - request.arrived_at
        for at, request in served
        if request.first_output_at and at > now - LATENCY_S
    )
    if not seconds:
        return FirstToken(0)
    halfway, late = _quantile(seconds, 0.5), _quantile(seconds, 0.95)
    return FirstToken(len(seconds), milliseconds(halfway), milliseconds(late))


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def milliseconds(seconds: float) -> float:
    """Milliseconds, rounded to a tenth."""
    return round(seconds * 1000, 1)


def _decision(entry: Entry, at_ms: int) -> Decision:
    request = entry.request
    return Decision(
        n=entry.n,
        id=request.id,
        at_ms=at_ms,
        tenant=request.tenant,
        what=entry.what,
        outcome=None if entry.outcome is None else entry.outcome.value,
        level=request.level,
        why=entry.details.reason or "",
        wait_ms=waited_ms(entry),
        predicted_ms=predicted_ms(entry),
    )


def waited_ms(entry: Entry) -> float | None:
    """The wait in the queue; None while the request waits, or if it was never queued."""
    request = entry.request
    if not request.admitted or entry.outcome is None:
        return None
    return milliseconds((request.started_at or entry.at) - request.queued_at)


def predicted_ms(entry: Entry) -> float | None:
    """The wait predicted at admission, for rejected requests too."""
    request = entry.request
    return milliseconds(request.predicted_wait_s) if request.admitted else entry.details.predicted_wait_ms
