"""The admission test, before a request is queued and again when it starts: docs/architecture/mechanisms/admission.md.

    max(wait, q95(retrieval)) + prefill before it + own service <= margin * (deadline - now)
    max(wait, q95(retrieval)) + prefill before it + own prefill <= margin * (first token due - now)     streams only

Before a free slot no estimate rejects: only a passed deadline, and the prefill speed that workers announce
(`grant_at_once`, docs/decisions/074). Wait and service time are separate terms
because they err differently: the wait depends on many other requests, the service time on one unknown length. A tenant
above its share is judged by high quantiles only as far as it gets its share: if caution rejected all its requests, it
would have no queue for the scheduler to be fair to. Related work (Clockwork, Nexus, Mooncake, QLM) does not know a
share under deficit round robin.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from services.core.choices import SchedulerSettings
from services.core.cost import Lengths
from services.core.estimator import ENOUGH, PROBABLE, Estimator
from services.core.ladder import fit_clamp
from services.core.outcome import Outcome
from services.core.request import UNLIMITED, Request

if TYPE_CHECKING:
    from services.core.admissioncheck import AdmissionCheck
    from services.core.degradation import Degradation
    from services.core.stats import ClassStats

CAUTIOUS = 0.99
"""Quantile of prefill and time per token for the clamp: an answer that was cut must be in time."""
TURN_S = 0.005
"""A queued request expires this much after its client's limit on the wait, so that a request that is admitted and
started in one step is not rejected for microseconds."""


class AdmissionPolicy(Protocol):
    """How requests are judged: at admission, while they are queued, and when they start."""

    def refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """The rejection, from the planned level on; None if the request fits at the level planned last."""

    def start_level(self, check: AdmissionCheck) -> int:
        """The degradation level that is tried first."""

    def level(self, class_stats: ClassStats, name: str) -> int:
        """The current degradation level of the class."""

    def expiry(
        self, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths, estimator: Estimator,
        settings: SchedulerSettings,
    ) -> tuple[float, str]:  # fmt: skip
        """When the queued request expires, and the reason: "deadline", "first_token" or "patience"."""

    def grant(
        self, now: float, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths,
        estimator: Estimator, settings: SchedulerSettings,
    ) -> int:  # fmt: skip
        """The limit of the answer that starts now, in tokens: 0 if none would be in time, `UNLIMITED` if the request is
        open-ended and not cut. Sets `expires_for`.
        """

    def learns_from(self, now: float) -> float:
        """The time from which waits are samples for predictions, if this policy takes effect at `now`."""


class DeadlineAdmission:
    """Admits a request that is likely to meet its deadline, and starts it if it still can."""

    __slots__ = ("_degradation",)

    def __init__(self, degradation: Degradation) -> None:
        self._degradation = degradation

    def refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """By the tenant's queue, the client's limit on the wait, the deadline and the first token, in this order."""
        if why := check.pool_stats.pool.discipline.share_refusal(check):
            return why
        if not check.accepts_wait():
            return Outcome.YIELD, "no_slot"
        while missed := check.misses():
            if not check.plan_next(missed):
                return Outcome.DEADLINE_INFEASIBLE, missed
        return None

    def start_level(self, check: AdmissionCheck) -> int:
        return self._degradation.start_level(check)

    def level(self, class_stats: ClassStats, name: str) -> int:
        return self._degradation.level(class_stats, name)

    def expiry(
        self, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths, estimator: Estimator,
        settings: SchedulerSettings,
    ) -> tuple[float, str]:  # fmt: skip
        """The earliest of the three."""
        latest, why = _latest_start(request, prompt_tokens, answer_tokens, lengths, estimator, settings)
        if request.start_by < inf and request.ready:
            limit_at = _wait_limit_at(request)
            if limit_at < latest:
                return limit_at, "patience"
        elif request.found_slot:  # as far as is known, a slot is free when its passages are there
            latest = request.due_at - estimator.announced_prefill_s(prompt_tokens)
            why = "first_token" if request.first_token_by < request.deadline else "deadline"
        return latest, why

    def grant(
        self, now: float, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths,
        estimator: Estimator, settings: SchedulerSettings,
    ) -> int:  # fmt: skip
        """What fits before the deadline, if the first token is in time.

        An open-ended request that is not degraded gets no limit if the longest known answer fits.
        """
        whole = request.open_ended and answer_tokens >= request.max_tokens
        if whole:
            answer_tokens = max(answer_tokens, lengths.longest())
        request.expires_for = "deadline"
        if request.found_slot:
            tokens = grant_at_once(now, request, prompt_tokens, answer_tokens, estimator)
            return UNLIMITED if whole and tokens >= answer_tokens else tokens
        if request.first_token_by < inf and (
            now + first_token_s(request, prompt_tokens, estimator) > request.first_token_by
        ):
            request.expires_for = "first_token"
            return 0
        probable = 0.0
        if not (request.may_clamp or request.cold_start):
            probable = probable_tokens(lengths, answer_tokens, request.length_quantile)
        tokens = grant(request, prompt_tokens, answer_tokens, probable, request.deadline - now, estimator)
        if whole and tokens >= answer_tokens:
            return UNLIMITED
        return tokens if tokens >= min(answer_tokens, settings.min_answer_tokens) else 0

    def learns_from(self, now: float) -> float:
        """From `now` on: this policy did not predict the waits that began earlier."""
        return now


class BoundedAdmission:
    """Admits a request while the bounds allow it. No deadline, no degradation; a client's limit on the wait holds."""

    __slots__ = ()

    def __init__(self, degradation: Degradation) -> None:
        """`degradation` is not used."""

    def refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """`no_slot` where the client accepts no wait and no slot is free."""
        will_wait = check.prediction.idle or check.request.start_by > check.now
        return None if will_wait else (Outcome.YIELD, "no_slot")

    def start_level(self, check: AdmissionCheck) -> int:
        return 0

    def level(self, class_stats: ClassStats, name: str) -> int:
        return 0

    def expiry(
        self, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths, estimator: Estimator,
        settings: SchedulerSettings,
    ) -> tuple[float, str]:  # fmt: skip
        """When the client's limit on the wait is reached."""
        limit_at = _wait_limit_at(request) if request.ready else inf
        return limit_at, "patience" if limit_at < inf else "deadline"

    def grant(
        self, now: float, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths,
        estimator: Estimator, settings: SchedulerSettings,
    ) -> int:  # fmt: skip
        request.expires_for = "deadline"
        return UNLIMITED if request.open_ended else answer_tokens

    def learns_from(self, now: float) -> float:
        return inf  # this policy predicts nothing


def _wait_limit_at(request: Request) -> float:
    return request.start_by + max(0.0, request.ready_at - request.queued_at) + TURN_S


def grant(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    probable_tokens: float,
    slack_s: float,
    estimator: Estimator,
) -> int:
    """The deadline test at the start: the longest answer in tokens, 0 if none is in time.

    No margin: there is no wait left to predict. An answer that may be cut gets what fits. Any other must fit at its
    probable length, but for a cold start (admitted without a length estimate). A cold start that may be cut and does
    not fit is tried again at mean prefill and median time per token: a pool that starts nothing learns nothing.
    """
    if request.may_clamp:
        prefill_s = estimator.prefill_s(prompt_tokens, CAUTIOUS)
        tokens = fit_clamp(answer_tokens, slack_s, prefill_s, estimator.token_s(CAUTIOUS))
        if not tokens and request.cold_start:
            tokens = fit_clamp(answer_tokens, slack_s, estimator.prefill_s(prompt_tokens), estimator.token_s(0.5))
        return tokens
    if request.cold_start:
        needs_s = estimator.service_s(prompt_tokens, 0.0)
    else:
        needs_s = estimator.probable_s(prompt_tokens, probable_tokens)
    return answer_tokens if needs_s <= slack_s else 0


def grant_at_once(now: float, request: Request, prompt_tokens: int, answer_tokens: int, estimator: Estimator) -> int:
    """The test at the start for a request that found a free slot: the longest answer in tokens, 0 if none is in time.

    No estimate rejects it: only the deadline, and the prefill speed that the workers announce. An answer that may be
    cut is cut if all of it would be late at the median time per token, which no minority of slow answers moves; then to
    what fits with caution.
    """
    slack_s, prefill_s = request.deadline - now, estimator.announced_prefill_s(prompt_tokens)
    if request.first_token_by <= now + prefill_s:
        request.expires_for = "first_token"
        return 0
    if prefill_s >= slack_s:
        return 0
    if estimator.prefill_model.samples >= ENOUGH:
        prefill_s = estimator.prefill_s(prompt_tokens)
    if not request.may_clamp or slack_s >= prefill_s + answer_tokens * estimator.median_s:
        return answer_tokens
    cautious_s = estimator.prefill_s(prompt_tokens, CAUTIOUS)
    return fit_clamp(answer_tokens, slack_s, cautious_s, estimator.token_s(CAUTIOUS)) or answer_tokens


def first_token_s(request: Request, prompt_tokens: int, estimator: Estimator) -> float:
    """Seconds from the start to the first token: the 85 % quantile, the mean for a cold start.

    The expiry in the queue and the test at the start both use it, so they agree.
    """
    return estimator.prefill_s(prompt_tokens, None if request.cold_start else PROBABLE)


def _latest_start(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    lengths: Lengths,
    estimator: Estimator,
    settings: SchedulerSettings,
) -> tuple[float, str]:
    """The latest start that can still succeed, and what fails after it.

    It may be in the past. Clamping it to now would make requests that cannot succeed the most urgent.
    """
    if request.may_clamp or request.cold_start:
        shortest_s = estimator.prefill_backlog_s() + estimator.service_s(
            prompt_tokens, min(answer_tokens, settings.min_answer_tokens)
        )
    else:
        answer = probable_tokens(lengths, answer_tokens, request.length_quantile)
        shortest_s = estimator.probable_s(prompt_tokens, answer)
    if request.first_token_by < inf:
        latest = request.first_token_by - first_token_s(request, prompt_tokens, estimator)
        if latest < request.deadline - shortest_s:
            return latest, "first_token"
    return request.deadline - shortest_s, "deadline"


def probable_tokens(lengths: Lengths, answer_tokens: int, quantile: float) -> float:
    """The length to count with at the start: at most the quantile of admission and at most q85. 0 while few are known.

    The median wastes work: of requests that start with just enough time for it, half are cut off at the deadline. The
    lengths of other tenants are not used: where they are long, they would block this tenant for good.
    """
    return lengths.at(min(quantile, PROBABLE), answer_tokens) if lengths.confident else 0.0
