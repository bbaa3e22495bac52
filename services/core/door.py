"""At the door: one newcomer, what stands before it, what it would come to, and what follows from that.

A visit lasts one decision. The tests come in the order of what they cost to break:

    is there a worker at all                                        else no_capacity
    its own line is short, or allowed to stand (`standing.py`)      else yield, standing_queue
    its client would wait so long                                   else yield, no_slot
    it makes its deadline and its first token (`admission.py`),
    at some level                                                   else deadline_infeasible
    there is room (`account.py`), which the scheduler says          else tenant_queue_full or yield

The next level of degradation is tried before the deadline refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from services.core.admission import first_token_s, outlook
from services.core.choices import WeirSettings
from services.core.cost import Lengths
from services.core.estimator import PROBABLE, Estimator
from services.core.hint import JITTER, LATEST_S
from services.core.ladder import Sizes
from services.core.learned import OfPool
from services.core.outcome import Outcome
from services.core.pool import Flow
from services.core.request import Request

TURN_S = 0.005
"""A client's patience ends this much later than it says: whoever offers and starts in one step is not held to its
microseconds."""
PROBE_AFTER = 16
"""Refusals in a row for its deadline after which an absent tenant is judged as if nothing were known of its answers."""


class Admitted(NamedTuple):
    """It has a place in line, at this level of degradation."""

    level: int
    predicted_wait_s: float


class Refused(NamedTuple):
    """It has none. `retry_hint_s` is None where coming back as it is cannot help."""

    outcome: Outcome
    reason: str
    scope: str
    predicted_wait_s: float
    retry_hint_s: float | None


class Visit:
    """One newcomer. `plan` prices it at a level, `refusal` judges it, `admit` or `refuse` writes down the answer."""

    __slots__ = (
        "_quantile",
        "answer_tokens",
        "cost_tokens",
        "flow",
        "level",
        "light",
        "now",
        "of_pool",
        "of_tenant",
        "prompt_tokens",
        "request",
        "service_s",
        "settings",
        "sizes",
        "view",
    )

    def __init__(
        self, now: float, request: Request, settings: WeirSettings, sizes: Sizes, of_pool: OfPool, flow: Flow
    ) -> None:
        self.now = now
        self.request = request
        self.settings = settings
        self.sizes = sizes
        self.of_pool = of_pool
        self.of_tenant = flow.learned
        self.flow = flow
        self.view = outlook(
            now, of_pool.pool, flow, request.due_at, of_pool.estimator, measured_rounds=settings.measured_rounds
        )
        self.light = True
        self.level = 0
        self._quantile = 0.0  # until it is asked for

    def prices(self) -> list[float]:
        """What it would cost at each level that its tenant allows."""
        request, sizes, weights = self.request, self.sizes, self.settings.weights
        means = self.of_tenant.lengths.expected_at(sizes.answers(request.max_tokens)[: request.max_level + 1])
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
        mean = self.of_tenant.lengths.expected(self.answer_tokens)
        self.cost_tokens = self.prompt_tokens * weights.prompt + mean * weights.completion
        self.service_s = 0.0

    def refusal(self) -> tuple[Outcome, str] | None:
        """Why it cannot come in, at any level from the planned one on; None if it can, at the level planned last."""
        estimator = self.of_pool.estimator
        if not estimator.slots:
            return Outcome.NO_CAPACITY, "no_worker"
        asked_per_s = self.of_tenant.asked.add(self.now, self.cost_tokens)
        self.light = not estimator.rate or asked_per_s <= estimator.rate * self.view.share
        stands = self.flow.requests > 0 and self.view.wait_s > self.of_tenant.standing.limit_s
        if stands and not self.light and self.settings.standing_queue:
            return Outcome.YIELD, "standing_queue"
        if not self._would_wait():
            return Outcome.YIELD, "no_slot"
        while why := self._misses():
            if self.level >= self.request.max_level:
                if self.view.idle:
                    self.service_s = self._service_s()
                if why == "deadline":
                    self.of_tenant.guessed_out += 1
                return Outcome.DEADLINE_INFEASIBLE, why
            self.plan(self.request.max_level if self._is_hopeless() else self.level + 1)
        return None

    def _is_hopeless(self) -> bool:
        """The wait alone breaks the deadline, and no level makes it shorter: only the deepest need be looked at."""
        if self.view.idle or not self.settings.feasibility:
            return False
        return self._wait_s() > self.settings.safety_margin * (self.request.deadline - self.now)

    def _would_wait(self) -> bool:
        """Whether its client accepts the wait to expect. None at all is a slot that is free, with nobody before it."""
        if self.view.idle:
            return True
        patience_s = self.request.start_by - self.now
        return patience_s > 0 and self.view.wait_s <= patience_s

    def _misses(self) -> str | None:
        """What it would miss at the planned level: its deadline, its first token, or nothing."""
        if not self._makes_it():
            return "deadline"
        return None if self.request.first_token_by == inf or self._first_token_makes_it() else "first_token"

    def _makes_it(self) -> bool:
        """The feasibility test. In an empty house nobody is refused on a guess, only on what is certain."""
        slack_s = self.request.deadline - self.now
        if self.view.idle:
            return 0 < slack_s > self.of_pool.estimator.prefill_s(self.prompt_tokens)
        self.service_s = self._service_s()
        if slack_s <= 0:
            return False
        if not self.settings.feasibility:
            return True
        return self._wait_s() + self.service_s <= self.settings.safety_margin * slack_s

    def _first_token_makes_it(self) -> bool:
        """The same for the first token: there is the wait, and the prompt to read."""
        slack_s = self.request.first_token_by - self.now
        read_s = self.of_pool.estimator.prefill_s(self.prompt_tokens)
        if slack_s <= 0 or self.view.idle:
            return read_s < slack_s
        if not self.settings.feasibility:
            return True
        return self._wait_s() + read_s <= self.settings.safety_margin * slack_s

    def _wait_s(self) -> float:
        """The wait that the tests count with: cautious for those who have their share, and at least retrieval's."""
        wait_s = self.view.wait_s
        if self.settings.calibrate and not self.light:
            wait_s = self.of_tenant.waits.of(self.view.new).cautious_s(wait_s, self.of_tenant.service_s)
        if not self.request.ready:
            wait_s = max(wait_s, self.of_pool.retrieval_s.quantile(0.95) or 0.0)
        return wait_s

    def _service_s(self) -> float:
        """How long it would run: of a cold tenant only what is certain, of a light one the median, else the q90.

        One that was refused for its lengths again and again is let in as a cold one is: guesses must meet the world.
        """
        lengths, estimator = self.of_tenant.lengths, self.of_pool.estimator
        if not lengths.confident or self._is_probe():
            return estimator.service_s(self.prompt_tokens, 0.0)
        return estimator.service_s(self.prompt_tokens, lengths.at(self.quantile(), self.answer_tokens))

    def quantile(self) -> float:
        """At which quantile of its lengths it is judged: the more of its share it gets, the higher."""
        if not self._quantile:
            rate = self.of_pool.estimator.rate
            self._quantile = 0.5
            if not (self.light or self.request.may_clamp) and rate:
                self._quantile += 0.4 * min(1.0, self.of_tenant.got.rate(self.now) / (rate * self.view.share))
        return self._quantile

    def _is_probe(self) -> bool:
        """Whether it is time to find out: refused for its lengths again and again, with nothing here to learn from."""
        return self.of_tenant.guessed_out >= PROBE_AFTER and not self.flow.tenant.busy

    def admit(self) -> None:
        """Write down what it was admitted with. The scheduler has the last word: there may be no room."""
        request = self.request
        request.on_trust = self.view.idle or self._is_probe()
        request.length_quantile = self.quantile()
        self.of_tenant.guessed_out = 0
        request.level = self.level
        request.charge_tokens = self.cost_tokens
        request.predicted_wait_s = self.view.wait_s
        request.predicted_as_new = self.view.new
        request.expires_at, request.expires_for = latest_start(
            request,
            self.prompt_tokens,
            self.answer_tokens,
            self.of_tenant.lengths,
            self.of_pool.estimator,
            self.settings.least_answer_tokens,
        )
        if request.ready and request.start_by + TURN_S < request.expires_at:
            request.expires_at, request.expires_for = request.start_by + TURN_S, "patience"

    def refuse(self, outcome: Outcome, reason: str, random: Callable[[], float], *, never: bool = False) -> Refused:
        """Say no, and when to come back: by the tenant's own line where it has one, by the pool's otherwise.

        `never`: coming back as it is cannot help.
        """
        self.request.level = self.level  # what it was judged at last
        rate, wait_s = self.of_pool.estimator.rate or 0.0, self.view.wait_s
        own = self.flow.requests > 0 and outcome is not Outcome.NO_CAPACITY
        scope = "tenant" if own else "platform"
        if never:
            return Refused(outcome, reason, scope, wait_s, None)
        if outcome is Outcome.DEADLINE_INFEASIBLE and not self._fits_alone():
            return Refused(outcome, "too_long", scope, wait_s, None)
        now, book, work = self.now, self.of_tenant.appointments, self.cost_tokens
        if own:
            hint_s = book.hint(now, self.flow.work, work, rate * self.view.share, random)
        else:
            hint_s = self.of_pool.appointments.hint(now, self.of_pool.pool.work, work, rate, random, guest=book)
        if reason == "no_slot":  # the books know who waits, and not who runs
            hint_s = min(LATEST_S, max(hint_s, wait_s * (1.0 + JITTER * random())))
        return Refused(outcome, reason, scope, wait_s, hint_s)

    def _fits_alone(self) -> bool:
        """Whether it would be in time without a wait, as what it is known to be."""
        margin, request = self.settings.safety_margin, self.request
        if not self.service_s < margin * (request.deadline - self.now):
            return False
        read_s = self.of_pool.estimator.prefill_s(self.prompt_tokens)
        return read_s < margin * (request.first_token_by - self.now)


def latest_start(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    lengths: Lengths,
    estimator: Estimator,
    least_answer_tokens: int,
) -> tuple[float, str]:
    """When it could start at the latest, and for what. One that starts later starts for nobody.

    That may be in the past. It stays so: clamped to now, it would make the dead the most urgent.
    """
    if request.may_clamp or request.on_trust:
        shortest_s = estimator.service_s(prompt_tokens, min(answer_tokens, least_answer_tokens))
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
