"""A retry before its hint: the refusal is repeated, with what is left of the hint, before the body is parsed.

Each client connection keeps its last refusal at admission. A request repeats that one if it comes over the same
connection and its path, key, tenant, limits and body are the same. A newcomer differs in one of these, so it is never
taken for a retry. The refusal is repeated while its grounds hold: until its hint, no slot of its pool is free and at
least half as many requests are queued as then; or the tenant's rate has not enough for it. Otherwise the request is
judged like any other, so a client that comes early never leaves a slot unused, and a hint that the queue has outrun is
not enforced. Half, because the length of a full queue goes up and down by the moment: a client that comes back at once
would otherwise be judged at each of its low points, and would win places from those that wait for their hints. An early
retry reserves nothing.

State: one record per connection, freed with it. Bodies are kept as hashes. Bronson et al., "Metastable Failures in
Distributed Systems" (HotOS 2021) show what retries do to a service that pays for each as for a first attempt.
"""

from __future__ import annotations

from typing import NamedTuple

from services.core.outcome import Outcome
from services.router.deciding.dispatcher import Dispatcher
from services.router.parsing.slo import ATTEMPT, FIELD_OF, RequestSLO
from services.router.request import InferenceRequest
from services.router.tenancy.tenants import Tenant
from services.runtime.errors import Refused
from services.runtime.http import Exchange

DECIDING_HEADERS = frozenset(
    {b"authorization", b"x-tenant", *(name for name, field in FIELD_OF.items() if field != ATTEMPT)}
)
"""The headers that a decision depends on. Clients number their attempts, so that header is not one of them."""
REASON = "early_retry"
OUTRUN = 2
"""A hint is outrun when the queue is shorter than its length at the refusal over this."""


class StandingRefusal(NamedTuple):
    """The last refusal on a connection. Times are the event loop's, in seconds."""

    fingerprint: int
    refused_at: float
    until: float
    account: Tenant
    slo: RequestSLO
    outcome: Outcome
    scope: str | None
    pool: str
    queue_depth: int
    tokens: float
    """What the tenant's rate lacked; 0.0 for a refusal by the scheduler."""


def remember(exchange: Exchange, request: InferenceRequest, refusal: Refused, tokens: float) -> None:
    """Keep a refusal at admission on its connection. `tokens`: what the rate was asked for, if the rate refused."""
    hint_ms, account = refusal.details.retry_hint_ms, request.account
    if hint_ms is None or refusal.status != 429 or account is None or account.paused:
        return
    now = exchange.read_at
    exchange.connection_memo = StandingRefusal(
        _fingerprint(exchange), now, now + hint_ms / 1000, account, request.slo, refusal.outcome,
        refusal.details.scope, request.pool, request.queue_depth or 0, tokens,
    )  # fmt: skip


def repeated(exchange: Exchange, request: InferenceRequest, dispatcher: Dispatcher) -> Refused | None:
    """The refusal again, if this request is an early retry and the grounds still hold. Sets the tenant and the SLO."""
    last = exchange.connection_memo
    now = exchange.read_at
    if not isinstance(last, StandingRefusal) or now >= last.until:
        return None
    if request.account is not None and request.account is not last.account:
        return None
    if not _still_holds(now, last, dispatcher) or _fingerprint(exchange) != last.fingerprint:
        return None
    request.account = last.account
    request.tenant = last.account.id
    request.slo = last.slo
    request.deadline = request.arrived_at + last.slo.deadline_ms / 1000
    ago_ms = (now - last.refused_at) * 1000
    left_ms = (last.until - now) * 1000
    return Refused(
        last.outcome,
        f"this request was refused {ago_ms:.0f} ms ago, and came back {left_ms:.0f} ms before its retry hint",
        reason=REASON,
        scope=last.scope,
        retry_hint_ms=left_ms,
        deadline_ms=last.slo.deadline_ms,
        queue_depth=dispatcher.scheduler.usage.requests,
    )


def _still_holds(now: float, last: StandingRefusal, dispatcher: Dispatcher) -> bool:
    if dispatcher.draining:
        return False
    if last.tokens:
        rate = last.account.rate
        return rate is not None and rate.wait_s(now, last.tokens) > 0
    return dispatcher.scheduler.usage.requests * OUTRUN >= last.queue_depth and not dispatcher.has_room(last.pool)


def _fingerprint(exchange: Exchange) -> int:
    deciding = tuple([header for header in exchange.headers if header[0] in DECIDING_HEADERS])
    return hash((exchange.path, deciding, exchange.body))
