"""One newcomer: what waits before it, what it would come to, and what follows from that.

A check lasts one decision. Under `DeadlineAdmission` (`admission.py`) the tests come in the order of what they cost to
break:

    is there a worker at all                                        else no_capacity
    its tenant's queue is short, or allowed to stand (`codel.py`)   else yield, standing_queue
    its client would wait so long                                   else yield, no_slot
    it makes its deadline and its first token, at some level        else deadline_infeasible
    there is room (`account.py`), which the scheduler says          else tenant_queue_full or yield

A pool with a free slot is idle, and refuses no request on a guess, while the prompts that its workers have still to
read take little of the newcomer's time. Where they take more it is *congested*: there is no wait for a slot, and the
test is made with all that is unread before it, as if it stood in the queue.

The next level of degradation is tried before the deadline refuses it. Under `BoundedAdmission` the first test and the
last are left, and a client's own word that it would not wait at all.
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
"""While others' prompts take less than this part of its slack to be read, a pool with a free slot is idle."""
ROOM_PROMPTS = 2
"""A tenant above its share leaves room for so many more prompts like its own to be read."""
PROBE_AFTER = 16
"""Refusals in a row for its deadline after which an absent tenant is judged as if nothing were known of its answers."""


class Admitted(NamedTuple):
    """It has a place in line, at this level of degradation."""

    level: int
    predicted_wait_s: float


class Rejection(NamedTuple):
    """It has none. `retry_hint_s` is None where coming back as it is cannot help."""

    outcome: Outcome
    reason: str
    scope: str
    predicted_wait_s: float
    retry_hint_s: float | None


class AdmissionCheck:
    """One newcomer. `plan` prices it at a level, `refusal` judges it, `admit` or `refuse` writes down the answer."""

    __slots__ = (
        "_quantile",
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
        self.prediction = pool.discipline.predict_wait(
            now, flow, request.due_at, estimator, measured_rounds=settings.measured_rounds
        )
        self.prefill_backlog_s = estimator.prefill_backlog_s(pool.unread_tokens if self.prediction.idle else 0)
        self.free = self.prediction.idle and self.prefill_backlog_s <= CONGESTED * (request.deadline - now)
        self.share = pool.share(flow) if self.prediction.idle and self.prefill_backlog_s else self.prediction.share
        self.under_share = True
        self.level = 0
        self._quantile = 0.0  # until it is asked for

    @property
    def congested(self) -> bool:
        """A slot is free, and the prompts before it take a good part of its time to be read."""
        return self.prediction.idle and not self.free

    def prices(self) -> list[float]:
        """What it would cost at each level that its tenant allows."""
        request, sizes, weights = self.request, self.sizes, self.settings.weights
        means = self.tenant_stats.lengths.expected_at(sizes.answers(request.max_tokens)[: request.max_level + 1])
        contexts, prompt = sizes.contexts(request.context_tokens), request.prompt_tokens
        per_read, per_written = weights.prompt, weights.completion
        return [
            (prompt + context) * per_read + mean * per_written for context, mean in zip(contexts, means, strict=False)
        ]

    def plan(self, level: int) -> None:
        """What the request comes to at this level: its sizes, and its estimated cost."""
        request, weights = self.request, self.settings.weights
        if level:
            self.prompt_tokens = request.prompt_tokens + self.sizes.contexts(request.context_tokens)[level]
            self.answer_tokens = self.sizes.answers(request.max_tokens)[level]
        else:
            self.prompt_tokens = request.prompt_tokens + request.context_tokens
            self.answer_tokens = request.max_tokens
        self.level = level
        mean = self.tenant_stats.lengths.expected(self.answer_tokens)
        self.cost_tokens = self.prompt_tokens * weights.prompt + mean * weights.completion
        self.service_s = 0.0

    def refusal(self) -> tuple[Outcome, str] | None:
        """Why it cannot come in, at any level from the planned one on; None if it can, at the level planned last."""
        if not self.pool_stats.estimator.slots:
            return Outcome.NO_CAPACITY, "no_worker"
        self.asked_per_s = self.tenant_stats.asked.add(self.now, self.cost_tokens)
        self.all_asked_per_s = self.pool_stats.asked.add(self.now, self.cost_tokens)
        return self.admission.refusal(self)

    def plan_next(self, missed: str) -> bool:
        """Plan the next level to try, since it missed that; False where the tenant allows none that is deeper."""
        if self.level < self.request.max_level:
            self.plan(self.request.max_level if self._is_hopeless() else self.level + 1)
            return True
        if self.free:
            self.service_s = self._service_s()
        if missed == "deadline":
            self.tenant_stats.estimate_rejects += 1
        return False

    def leave_room(self) -> None:
        """Count with more before it than there is, so that tenants under their share find room to be read.

        While slots are free no request waits, and no turn is looked at: what one tenant has unread at the workers is
        before every other request.
        """
        room_s = ROOM_PROMPTS * self.prompt_tokens * self.pool_stats.estimator.prefill_model.per_token_before_s
        self.free = self.free and self.prefill_backlog_s + room_s <= CONGESTED * (self.request.deadline - self.now)
        if not self.free:
            self.prefill_backlog_s += room_s

    def _is_hopeless(self) -> bool:
        """The wait alone breaks the deadline, and no level makes it shorter: only the deepest need be looked at."""
        if self.free or not self.settings.feasibility:
            return False
        return self._wait_s() + self.prefill_backlog_s > self.settings.safety_margin * (
            self.request.deadline - self.now
        )

    def accepts_wait(self) -> bool:
        """Whether its client accepts the wait to expect. None at all is a slot that is free for it."""
        if self.prediction.idle:
            return True
        patience_s = self.request.start_by - self.now
        return patience_s > 0 and self.prediction.wait_s <= patience_s

    def misses(self) -> str | None:
        """What it would miss at the planned level: its deadline, its first token, or nothing."""
        if not self._makes_it():
            return "deadline"
        return None if self.request.first_token_by == inf or self._first_token_makes_it() else "first_token"

    def _makes_it(self) -> bool:
        """The feasibility test. In an idle pool no request is refused on a guess, only on what is certain."""
        slack_s = self.request.deadline - self.now
        if self.free:
            return 0 < slack_s > self._read_s()
        request = self.request
        self.service_s = request.counted_service_s = self._service_s()
        if slack_s <= 0:
            return False
        if not self.settings.feasibility:
            return True
        wait_s = request.counted_wait_s = self._wait_s()
        return wait_s + self.prefill_backlog_s + self.service_s <= self.settings.safety_margin * slack_s

    def _first_token_makes_it(self) -> bool:
        """The same for the first token: there is the wait, and the prompt to read."""
        slack_s, read_s = self.request.first_token_by - self.now, self._read_s()
        if slack_s <= 0 or self.free:
            return read_s < slack_s
        if not self.settings.feasibility:
            return True
        return self._wait_s() + read_s <= self.settings.safety_margin * slack_s

    def _read_s(self) -> float:
        """How long until its prompt is read, if it starts now: those before it, and its own."""
        return self.prefill_backlog_s + self.pool_stats.estimator.prefill_model.seconds(self.prompt_tokens)

    def _wait_s(self) -> float:
        """The wait that the tests count with: cautious for those who have their share, and at least retrieval's."""
        wait_s = self.prediction.wait_s
        if self.settings.calibrate and not self.under_share:
            wait_s = self.tenant_stats.waits.of(self.prediction.new).cautious_s(wait_s, self.tenant_stats.service_s)
        if not self.request.ready:
            wait_s = max(wait_s, self.pool_stats.retrieval_s.quantile(0.95) or 0.0)
        return wait_s

    def _service_s(self) -> float:
        """How long it would run: certainly for a cold tenant, the median for one under its share, else the q90.

        One that was refused for its lengths again and again is let in as a cold one is: guesses must meet the world.
        """
        lengths, estimator = self.tenant_stats.lengths, self.pool_stats.estimator
        if not (lengths.confident or self.congested) or self._is_probe():
            return estimator.service_s(self.prompt_tokens, 0.0)
        return estimator.service_s(self.prompt_tokens, lengths.at(self.quantile(), self.answer_tokens))

    def quantile(self) -> float:
        """At which quantile of its lengths it is judged: the more of its share it gets, the higher."""
        if not self._quantile:
            rate = self.pool_stats.estimator.rate
            self._quantile = 0.5
            if not (self.under_share or self.request.may_clamp) and rate:
                self._quantile += 0.4 * min(1.0, self.tenant_stats.got.rate(self.now) / (rate * self.share))
        return self._quantile

    def _is_probe(self) -> bool:
        """Whether it is time to find out: refused for its lengths again and again, with nothing here to learn from."""
        return self.tenant_stats.estimate_rejects >= PROBE_AFTER and not self.flow.tenant.busy

    def admit(self) -> None:
        """Write down what it was admitted with. The scheduler has the last word: there may be no room."""
        request = self.request
        assert self.level <= request.max_level, f"{request!r} at level {self.level}, {request.max_level} is allowed"
        request.cold_start = self.free or self._is_probe()
        request.length_quantile = self.quantile()
        self.tenant_stats.estimate_rejects = 0
        request.level = self.level
        request.charge_tokens = self.cost_tokens
        request.read_tokens = self.prompt_tokens if self.settings.reading_line else 0
        request.predicted_wait_s = self.prediction.wait_s
        request.predicted_as_new = self.prediction.new
        request.expires_at, request.expires_for = self.admission.expiry(
            request,
            self.prompt_tokens,
            self.answer_tokens,
            self.tenant_stats.lengths,
            self.pool_stats.estimator,
            self.settings,
        )

    def refuse(self, outcome: Outcome, reason: str, random: Callable[[], float], *, never: bool = False) -> Rejection:
        """The rejection, and when to come back: by the tenant's own queue where it has one, by the pool's otherwise.

        `never`: coming back as it is cannot help.
        """
        self.request.level = self.level  # what it was judged at last
        rate = self.pool_stats.estimator.rate or 0.0
        wait_s = self.prediction.wait_s + (self.prefill_backlog_s if self.congested else 0.0)
        own = outcome is not Outcome.NO_CAPACITY and self.pool_stats.pool.discipline.has_own_queue(self.flow)
        scope = "tenant" if own else "platform"
        if never:
            return Rejection(outcome, reason, scope, wait_s, None)
        if outcome is Outcome.DEADLINE_INFEASIBLE and not self._fits_alone():
            return Rejection(outcome, "too_long", scope, wait_s, None)
        now, book, work = self.now, self.tenant_stats.reservations, self.cost_tokens
        if own:
            hint_s = book.hint(now, self.flow.work, work, rate * self.share, random)
        else:
            before = self.pool_stats.pool.work
            if self.congested:
                before += self.pool_stats.estimator.unread_tokens * self.settings.weights.prompt
            hint_s = self.pool_stats.reservations.hint(now, before, work, rate, random, guest=book)
        if reason == "no_slot":  # the books know who waits, and not who runs
            hint_s = min(LATEST_S, max(hint_s, wait_s * (1.0 + JITTER * random())))
        return Rejection(outcome, reason, scope, wait_s, hint_s)

    def _fits_alone(self) -> bool:
        """Whether it would be in time without a wait, as what it is known to be."""
        margin, request = self.settings.safety_margin, self.request
        if not self.service_s < margin * (request.deadline - self.now):
            return False
        read_s = self.pool_stats.estimator.prefill_model.seconds(self.prompt_tokens)
        return read_s < margin * (request.first_token_by - self.now)
