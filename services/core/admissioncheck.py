"""One admission decision about one request: docs/architecture/mechanisms/admission.md has the order of the tests.

A pool with a free slot whose workers have much to prefill is *congested*: the full test applies, with the unread tokens
before the request. Under `BoundedAdmission` only the tests of live workers and of the bounds remain, and `no_slot` for
a client that accepts no wait.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from services.core.admission import AdmissionPolicy
from services.core.choices import SchedulerSettings
from services.core.ladder import LadderSizes
from services.core.outcome import Outcome
from services.core.pool import Flow
from services.core.request import Request
from services.core.reservations import JITTER, LATEST_S
from services.core.stats import PoolStats

CONGESTED = 0.1
"""A pool with a free slot counts as idle while prefill before the request takes at most this part of its slack."""
ROOM_PROMPTS = 2
"""A tenant above its share is judged as if this many more prompts of its size were unread."""
PROBE_AFTER = 16
"""Rejections in a row for its lengths after which an idle tenant is judged as if its lengths were unknown."""


class Admitted(NamedTuple):
    """The request is queued, at this degradation level."""

    level: int
    predicted_wait_s: float


class Rejection(NamedTuple):
    """The request is rejected. `retry_hint_s` is None where a retry of the same request cannot help."""

    outcome: Outcome
    reason: str
    scope: str
    predicted_wait_s: float
    retry_hint_s: float | None


class AdmissionCheck:
    """One decision. `plan` prices the request at a level, `refusal` judges it; the rest records the decision."""

    __slots__ = (
        "_quantile",
        "_wait_s",
        "admission",
        "all_asked_per_s",
        "answer_tokens",
        "asked_per_s",
        "cost_tokens",
        "flow",
        "free",
        "level",
        "now",
        "pool_stats",
        "prediction",
        "prefill_backlog_s",
        "prompt_tokens",
        "request",
        "service_s",
        "settings",
        "share",
        "sizes",
        "tenant_stats",
        "under_share",
    )

    def __init__(
        self,
        now: float,
        request: Request,
        settings: SchedulerSettings,
        sizes: LadderSizes,
        admission: AdmissionPolicy,
        pool_stats: PoolStats,
        flow: Flow,
    ) -> None:
        self.admission = admission
        self.now = now
        self.request = request
        self.settings = settings
        self.sizes = sizes
        self.pool_stats = pool_stats
        self.tenant_stats = flow.stats
        self.flow = flow
        pool, estimator = pool_stats.pool, pool_stats.estimator
        self.prediction = prediction = pool.discipline.predict_wait(
            now, flow, request.due_at, estimator, measured_rounds=settings.measured_rounds
        )
        self.share, idle = prediction.share, prediction.idle
        self.prefill_backlog_s = backlog_s = estimator.prefill_backlog_s(pool.unread_tokens if idle else 0)
        self.free = idle and backlog_s <= CONGESTED * (request.deadline - now)
        if idle and backlog_s:
            self.share = pool.share(flow)
        self.under_share = True
        self.level = 0
        self._quantile = 0.0  # computed on the first use, as the next one
        self._wait_s = -1.0

    @property
    def congested(self) -> bool:
        """Whether a slot is free but prefill before the request takes more than CONGESTED of its slack."""
        return self.prediction.idle and not self.free

    def plan(self, level: int) -> None:
        """Set the sizes and the estimated cost at this level."""
        request, weights = self.request, self.settings.weights
        if level:
            prompt_tokens = request.prompt_tokens + self.sizes.contexts(request.context_tokens)[level]
            answer_tokens = self.sizes.answers(request.max_tokens)[level]
        else:
            prompt_tokens, answer_tokens = request.prompt_tokens + request.context_tokens, request.max_tokens
        self.level, self.prompt_tokens, self.answer_tokens = level, prompt_tokens, answer_tokens
        mean = self.tenant_stats.lengths.expected(answer_tokens)
        self.cost_tokens = prompt_tokens * weights.prompt + mean * weights.completion
        self.service_s = 0.0

    def refusal(self) -> tuple[Outcome, str] | None:
        """The rejection, at any level from the planned one on; None if it fits, at the level planned last."""
        if not self.pool_stats.estimator.slots:
            return Outcome.NO_CAPACITY, "no_worker"
        now, cost_tokens = self.now, self.cost_tokens
        self.asked_per_s = self.tenant_stats.asked.add(now, cost_tokens)
        self.all_asked_per_s = self.pool_stats.asked.add(now, cost_tokens)
        return self.admission.refusal(self)

    def plan_next(self, missed: str) -> bool:
        """Plan the next level to try after a missed deadline or first token. False if the tenant allows none deeper."""
        if self.level < self.request.max_level:
            self.plan(self.request.max_level if self._is_hopeless() else self.level + 1)
            return True
        if self.free:
            self.service_s = self._service_s()
        if missed == "deadline":
            self.tenant_stats.estimate_rejects += 1
        return False

    def leave_room(self) -> None:
        """Count more unread tokens than there are, so that tenants below their share find room.

        While slots are free no request waits for its turn, so one tenant's unread prompts delay all other tenants.
        """
        room_s = ROOM_PROMPTS * self.prompt_tokens * self.pool_stats.estimator.prefill_model.per_token_before_s
        self.free = self.free and self.prefill_backlog_s + room_s <= CONGESTED * (self.request.deadline - self.now)
        if not self.free:
            self.prefill_backlog_s += room_s

    def _is_hopeless(self) -> bool:
        """Whether the wait alone exceeds the limit. No level shortens it, so only the deepest is still tried."""
        if self.free or not self.settings.feasibility:
            return False
        return self.wait_s() + self.prefill_backlog_s > self.settings.safety_margin * (self.request.deadline - self.now)

    def accepts_wait(self) -> bool:
        """Whether the client accepts the predicted wait. A free slot is no wait."""
        if self.prediction.idle:
            return True
        start_by = self.request.start_by
        if start_by == inf:
            return True
        accepted_s = start_by - self.now
        return accepted_s > 0 and self.prediction.wait_s <= accepted_s

    def misses(self) -> str | None:
        """What the request would miss at the planned level: "deadline", "first_token" or None."""
        if not self._meets_deadline():
            return "deadline"
        return None if self.request.first_token_by == inf or self._meets_first_token() else "first_token"

    def _meets_deadline(self) -> bool:
        """The deadline test. Before a free slot only what is certain counts."""
        request, settings = self.request, self.settings
        slack_s = request.deadline - self.now
        if self.free:
            return 0 < slack_s > self._announced_prefill_s()
        self.service_s = request.counted_service_s = service_s = self._service_s()
        if slack_s <= 0:
            return False
        if not settings.feasibility:
            return True
        wait_s = request.counted_wait_s = self.wait_s()
        return wait_s + self.prefill_backlog_s + service_s <= settings.safety_margin * slack_s

    def _meets_first_token(self) -> bool:
        """The test of the first token: the wait and its prefill."""
        slack_s = self.request.first_token_by - self.now
        if slack_s <= 0:
            return False
        if self.free:
            crowded = self.prefill_backlog_s > CONGESTED * slack_s
            return (self._prefill_s() if crowded else self._announced_prefill_s()) < slack_s
        if not self.settings.feasibility:
            return True
        return self.wait_s() + self._prefill_s() <= self.settings.safety_margin * slack_s

    def _prefill_s(self) -> float:
        """Seconds to its first token if it starts now: the prompts before it, and its own."""
        return self.prefill_backlog_s + self.pool_stats.estimator.prefill_model.seconds(self.prompt_tokens)

    def _announced_prefill_s(self) -> float:
        return self.pool_stats.estimator.announced_prefill_s(self.prompt_tokens)

    def wait_s(self) -> float:
        """The wait to count with, at any level: q95 for a tenant above its share, else the mean; at least the q95 of
        retrieval.
        """
        if self._wait_s < 0.0:
            self._wait_s = self._cautious_wait_s()
        return self._wait_s

    def _cautious_wait_s(self) -> float:
        wait_s = self.prediction.wait_s
        if self.settings.calibrate and not self.under_share:
            wait_s = self.tenant_stats.waits.of(self.prediction.new).cautious_s(wait_s, self.tenant_stats.service_s)
        if not self.request.ready:
            wait_s = max(wait_s, self.pool_stats.retrieval_s.quantile(0.95) or 0.0)
        return wait_s

    def _service_s(self) -> float:
        """Its service time: prefill only for a cold tenant, the median below the share, else up to the q90.

        A tenant that was rejected PROBE_AFTER times for its lengths is judged as a cold one, so that an estimate that
        is too high is corrected by an answer.
        """
        lengths, estimator = self.tenant_stats.lengths, self.pool_stats.estimator
        if not (lengths.confident or self.congested) or self._is_probe():
            return estimator.service_s(self.prompt_tokens, 0.0)
        return estimator.service_s(self.prompt_tokens, lengths.at(self.quantile(), self.answer_tokens))

    def quantile(self) -> float:
        """The quantile of lengths that it is judged by: 0.5, up to 0.9 the more of its share the tenant gets."""
        if not self._quantile:
            rate = self.pool_stats.estimator.rate
            self._quantile = 0.5
            if not (self.under_share or self.request.may_clamp) and rate:
                self._quantile += 0.4 * min(1.0, self.tenant_stats.got.rate(self.now) / (rate * self.share))
        return self._quantile

    def _is_probe(self) -> bool:
        """Whether to admit without a length estimate: rejected for its lengths in a row, nothing queued or running."""
        return self.tenant_stats.estimate_rejects >= PROBE_AFTER and not self.flow.tenant.busy

    def charge(self) -> None:
        """Set what the bounds are asked with. The scheduler may still reject the request for one of them."""
        request, tenant_stats, cost_tokens = self.request, self.tenant_stats, self.cost_tokens
        assert self.level <= request.max_level, f"{request!r} at level {self.level}, {request.max_level} is allowed"
        request.found_slot = free = self.free
        request.cold_start = free or (tenant_stats.estimate_rejects > 0 and self._is_probe())
        tenant_stats.estimate_rejects = 0
        request.level = self.level
        request.charge_tokens = cost_tokens
        if tenant_stats.lengths.guessed:
            request.deferred_tokens = cost_tokens - self.prompt_tokens * self.settings.weights.prompt
        _, request.predicted_wait_s, _, request.predicted_as_new = self.prediction

    def admit(self) -> None:
        """Record the rest of what it is admitted with, after `charge`."""
        request = self.request
        request.length_quantile = self.quantile()
        request.read_tokens = self.prompt_tokens if self.settings.unread_prompts_delay else 0

    def expire(self) -> None:
        """Set when it expires in the queue. A request that starts at once never waits there."""
        request = self.request
        request.expires_at, request.expires_for = self.admission.expiry(
            request,
            self.prompt_tokens,
            self.answer_tokens,
            self.tenant_stats.lengths,
            self.pool_stats.estimator,
            self.settings,
        )

    def refuse(self, outcome: Outcome, reason: str, random: Callable[[], float], *, never: bool = False) -> Rejection:
        """The rejection with its retry hint, by the tenant's own queue where it has one, else by the pool's.

        `never`: a retry of the same request cannot help.
        """
        request, pool_stats, congested = self.request, self.pool_stats, self.congested
        request.level = self.level  # the level that was tried last
        pool, rate = pool_stats.pool, pool_stats.estimator.rate or 0.0
        wait_s = self.prediction.wait_s + self.prefill_backlog_s if congested else self.prediction.wait_s
        own = outcome is not Outcome.NO_CAPACITY and pool.discipline.has_own_queue(self.flow)
        scope = "tenant" if own else "platform"
        if never:
            return Rejection(outcome, reason, scope, wait_s, None)
        if outcome is Outcome.DEADLINE_INFEASIBLE and not self._fits_alone():
            return Rejection(outcome, "too_long", scope, wait_s, None)
        now, reservations, work = self.now, self.tenant_stats.reservations, self.cost_tokens
        if own:
            hint_s = reservations.hint(now, self.flow.work, work, rate * self.share, random)
        else:
            before = pool.work
            if congested:
                before += pool_stats.estimator.unread_tokens * self.settings.weights.prompt
            hint_s = pool_stats.reservations.hint(now, before, work, rate, random, own=reservations)
        if reason == "no_slot":  # queued work does not include the running requests
            hint_s = min(LATEST_S, max(hint_s, wait_s * (1.0 + JITTER * random())))
        return Rejection(outcome, reason, scope, wait_s, hint_s)

    def _fits_alone(self) -> bool:
        """Whether it would be in time without a wait, by what is known of it."""
        margin, request = self.settings.safety_margin, self.request
        if not self.service_s < margin * (request.deadline - self.now):
            return False
        prefill_s = self.pool_stats.estimator.prefill_model.seconds(self.prompt_tokens)
        return prefill_s < margin * (request.first_token_by - self.now)
