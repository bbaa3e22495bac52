"""Can it still make it? The test at the door, and again at the start.

A request is admitted if what it will wait and what it will take fit into a share of its slack:

    max(wait, q95(retrieval)) + own service <= margin * (deadline - now)

The two terms are kept apart because they fail apart: the wait depends on the others and is predicted well by the law
of large numbers, the service on one unknown length. One multiplied margin over both would be too brave for the one
and too timid for the other.

**The wait** is the queue discipline's to predict (`discipline.py`). While a slot is free no request waits, and none is
refused on a guess: only what could not make it in an idle pool is turned away.

**The service.** Prefill, then the answer's length times the time per token. The length is a guess.

**The first token.** A stream promises its first token before its end. That is a second test of the same form, with
the time to read the prompt in the place of the service, and it fails apart: a client that watches a stream does not
mind how long it goes on.

    max(wait, q95(retrieval)) + prefill <= margin * (first token due - now)

**Patience.** A client may say how long it would stand in line. It is believed: a longer expected wait is a refusal
now, not an expiry later. One that would not wait at all needs an idle pool, which is not a guess. The time that its
own retrieval takes is not spent in line: the slot that was free for it may be taken by then, and if so it yields.

**Caution is for those who have their share.** A tenant that asks for more than its share counts with the q95 of its
wait (`calibration.py`) and with a high quantile of its lengths, the q90 once it gets all of its share: what it loses by
caution, it would have lost anyway. While it gets less, the quantile is lower, down to the median: refused on caution,
it would have no line for the scheduler to be fair to. One that asks for less than its share counts with the mean and
the median, and its standing queue is not looked at: it must not be refused because its neighbours are unpredictable.

Where an answer may be cut to fit, the median serves for all: the clamp bounds the rest. A tenant of whom fewer than 20
answers are known is not refused on a guess at all: only its prefill counts. Judged by the lengths of others it might be
refused for ever, and no answer would show that they were wrong.

Relatives: Clockwork (OSDI '20) and Nexus (SOSP '19) test feasibility with known service times; Mooncake (FAST '25)
refuses before prefill; QLM (2024) estimates waits from queued tokens. None of them knows the share that DRR gives.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from services.core.choices import SchedulerSettings
from services.core.cost import Lengths
from services.core.estimator import PROBABLE, Estimator
from services.core.ladder import fit_clamp
from services.core.outcome import Outcome
from services.core.request import Request

if TYPE_CHECKING:
    from services.core.admissioncheck import AdmissionCheck
    from services.core.degradation import Degradation
    from services.core.stats import ClassStats

CAUTIOUS = 0.99
"""The quantile of prefill and time per token that the clamp counts with: an answer that is cut must be in time."""
TURN_S = 0.005
"""A client's patience ends this much later than it says: a client that asks and starts in one step is not held to its
microseconds."""


class AdmissionPolicy(Protocol):
    """What a request is judged by: at the door, while it waits, and when it starts."""

    def refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """Why the newcomer cannot come in at any level from the planned one on; None if it can, at the last planned."""

    def start_level(self, check: AdmissionCheck) -> int:
        """The degradation level at which the newcomer is tried first."""

    def level(self, class_stats: ClassStats, name: str) -> int:
        """The degradation level that the class stands at."""

    def expiry(
        self, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths, estimator: Estimator,
        settings: SchedulerSettings,
    ) -> tuple[float, str]:  # fmt: skip
        """Until when the request may wait, and for what: its deadline, its first token, or its client's patience."""

    def grant(
        self, now: float, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths,
        estimator: Estimator, settings: SchedulerSettings,
    ) -> int:  # fmt: skip
        """The test at the start: the longest answer in tokens; 0 if none would be in time. Sets `expires_for`."""

    def learns_from(self, now: float) -> float:
        """Waits that begin at this time or later say something about predictions, if this policy begins now."""


class DeadlineAdmission:
    """A request is admitted if it is likely to make its deadline, and starts if it still can."""

    __slots__ = ("_degradation",)

    def __init__(self, degradation: Degradation) -> None:
        self._degradation = degradation

    def refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """By the tenant's queue, the client's patience, the deadline and the first token, in this order."""
        if why := check.pool_stats.pool.discipline.share_refusal(check):
            return why
        if not check.accepts_wait():
            return Outcome.YIELD, "no_slot"
        while missed := check.misses():
            if not check.plan_next(missed):
                return Outcome.DEADLINE_INFEASIBLE, missed
        return None

    def start_level(self, check: AdmissionCheck) -> int:
        """Where its class stands, as far as its tenant allows."""
        return self._degradation.start_level(check)

    def level(self, class_stats: ClassStats, name: str) -> int:
        """As it is held, or by its load."""
        return self._degradation.level(class_stats, name)

    def expiry(
        self, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths, estimator: Estimator,
        settings: SchedulerSettings,
    ) -> tuple[float, str]:  # fmt: skip
        """The earliest of the three."""
        latest, why = _latest_start(request, prompt_tokens, answer_tokens, lengths, estimator, settings)
        if request.ready:
            patient_until = _patient_until(request)
            if patient_until < latest:
                return patient_until, "patience"
        return latest, why

    def grant(
        self, now: float, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths,
        estimator: Estimator, settings: SchedulerSettings,
    ) -> int:  # fmt: skip
        """What fits before the deadline, if the first token is in time."""
        request.expires_for = "deadline"
        if request.first_token_by < inf and (
            now + first_token_s(request, prompt_tokens, estimator) > request.first_token_by
        ):
            request.expires_for = "first_token"
            return 0
        probable = 0.0
        if not (request.may_clamp or request.cold_start):
            probable = probable_tokens(lengths, answer_tokens, request.length_quantile)
        tokens = grant(request, prompt_tokens, answer_tokens, probable, request.deadline - now, estimator)
        return tokens if tokens >= min(answer_tokens, settings.least_answer_tokens) else 0

    def learns_from(self, now: float) -> float:
        """From now on: waits that began under another policy say nothing about what this one promises."""
        return now


class BoundedAdmission:
    """A request is admitted while there is room. No deadline, no degradation; a client's patience still counts."""

    __slots__ = ()

    def __init__(self, degradation: Degradation) -> None:
        """It takes no part in degradation."""

    def refusal(self, check: AdmissionCheck) -> tuple[Outcome, str] | None:
        """Only where the client would not wait at all."""
        will_wait = check.prediction.idle or check.request.start_by > check.now
        return None if will_wait else (Outcome.YIELD, "no_slot")

    def start_level(self, check: AdmissionCheck) -> int:
        """Full quality."""
        return 0

    def level(self, class_stats: ClassStats, name: str) -> int:
        """Full quality."""
        return 0

    def expiry(
        self, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths, estimator: Estimator,
        settings: SchedulerSettings,
    ) -> tuple[float, str]:  # fmt: skip
        """When the client's patience ends."""
        patient_until = _patient_until(request) if request.ready else inf
        return patient_until, "patience" if patient_until < inf else "deadline"

    def grant(
        self, now: float, request: Request, prompt_tokens: int, answer_tokens: int, lengths: Lengths,
        estimator: Estimator, settings: SchedulerSettings,
    ) -> int:  # fmt: skip
        """All that was asked for."""
        request.expires_for = "deadline"
        return answer_tokens

    def learns_from(self, now: float) -> float:
        """Never."""
        return inf


def _patient_until(request: Request) -> float:
    return request.start_by + max(0.0, request.ready_at - request.queued_at) + TURN_S


def grant(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    probable_tokens: float,
    slack_s: float,
    estimator: Estimator,
) -> int:
    """The test at the start: how long its answer may be; 0 if none would be in time. (`first_token_s` is the other.)

    Without the margin, since no wait is left to be wrong about. One that may be cut is given what fits; one that may
    not must fit at its probable length, unless it was let in without a guess. One that was is not turned away on
    caution either: a pool that starts nothing learns nothing.
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


def first_token_s(request: Request, prompt_tokens: int, estimator: Estimator) -> float:
    """How long after its start its first token comes: in 85 cases of 100; on average if it was let in without a guess.

    Both tests after the door use it: one that starts later than that before its first token is due starts in vain.
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
    """When it could start at the latest. One that starts later starts in vain.

    That may be in the past. It stays so: clamped to now, it would make the dead the most urgent.
    """
    if request.may_clamp or request.cold_start:
        shortest_s = estimator.prefill_backlog_s() + estimator.service_s(
            prompt_tokens, min(answer_tokens, settings.least_answer_tokens)
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
    """How long an answer may well be, judged no harder than at the door; while few are known, only what is certain.

    At most the 85th of 100: the median wastes, since of those that start with just enough time for it, half are cut off
    at their deadline. A guess from the lengths of others locks a tenant out for good where they are all long.
    """
    return lengths.at(min(quantile, PROBABLE), answer_tokens) if lengths.confident else 0.0
