"""At the door: one newcomer, what stands before it, what it would come to, and what follows from that.

A visit lasts one decision. The tests come in the order of what they cost to break:

    is there a worker at all                                        else no_capacity
    its own line is short, or allowed to stand (`standing.py`)      else yield, standing_queue
    its client would wait so long                                   else yield, no_slot
    it makes its deadline and its first token (`admission.py`),
    at some level                                                   else deadline_infeasible
    there is room (`account.py`), which the scheduler says          else tenant_queue_full or yield

A house with a free slot is empty, and refuses nobody on a guess, while the prompts that its workers have still to read
take little of the newcomer's time. Where they take more it is *crowded*: there is no wait for a slot, and the test is
made with all that is unread before it, as if it stood in line.

The next level of degradation is tried before the deadline refuses it. Where admission is off (`policies.py`) the first
test and the last are left, and a client's own word that it would not wait at all.
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

CROWDED = 0.1
"""While others' prompts take less than this part of its slack to be read, a free slot is as good as an empty house."""
ROOM_PROMPTS = 2
"""Whoever has its share leaves room for so many more prompts like its own to be read."""
ALONE = 0.999
"""Of all that is asked: who asks for more than that has nobody to leave room for."""
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
        "before_s",
        "cost_tokens",
        "flow",
        "free",
        "level",
        "light",
        "now",
        "of_pool",
        "of_tenant",
        "prompt_tokens",
        "request",
        "service_s",
        "settings",
        "share",
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
        self.before_s = of_pool.estimator.before_s(of_pool.pool.unread_tokens if self.view.idle else 0)
        self.free = self.view.idle and self.before_s <= CROWDED * (request.deadline - now)
        self.share = of_pool.pool.share(flow) if self.view.idle and self.before_s else self.view.share
        self.light = True
        self.level = 0
        self._quantile = 0.0  # until it is asked for

    @property
    def crowded(self) -> bool:
        """A slot is free, and the prompts before it take a good part of its time to be read."""
        return self.view.idle and not self.free

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
        policies = self.settings.policies
        asked_per_s = self.of_tenant.asked.add(self.now, self.cost_tokens)
        all_asked_per_s = self.of_pool.asked.add(self.now, self.cost_tokens)
        if not policies.admission:
            will_wait = self.view.idle or self.request.start_by > self.now
            return None if will_wait else (Outcome.YIELD, "no_slot")
        if policies.fairness:
            self.light = not estimator.rate or asked_per_s <= estimator.rate * self.share
            if not self.light and asked_per_s < ALONE * all_asked_per_s and self.settings.reading_line:
                self._leave_room()
            stands = self.flow.requests > 0 and self.view.wait_s > self.of_tenant.standing.limit_s
            if stands and not self.light and self.settings.standing_queue:
                return Outcome.YIELD, "standing_queue"
        else:  # one line for all: nobody has a share that it could be below
            self.light = False
        if not self._would_wait():
            return Outcome.YIELD, "no_slot"
        while why := self._misses():
            if self.level >= self.request.max_level:
                if self.free:
                    self.service_s = self._service_s()
                if why == "deadline":
                    self.of_tenant.guessed_out += 1
                return Outcome.DEADLINE_INFEASIBLE, why
            self.plan(self.request.max_level if self._is_hopeless() else self.level + 1)
        return None

    def _leave_room(self) -> None:
        """Count with more before it than there is, so that those below their share find room to be read.

        While slots are free nobody stands in line, and nobody's turn is looked at: what one tenant has unread at the
        workers is before everybody.
        """
        room_s = ROOM_PROMPTS * self.prompt_tokens * self.of_pool.estimator.reading.per_token_before_s
        self.free = self.free and self.before_s + room_s <= CROWDED * (self.request.deadline - self.now)
        if not self.free:
            self.before_s += room_s

    def _is_hopeless(self) -> bool:
        """The wait alone breaks the deadline, and no level makes it shorter: only the deepest need be looked at."""
        if self.free or not self.settings.feasibility:
            return False
        return self._wait_s() + self.before_s > self.settings.safety_margin * (self.request.deadline - self.now)

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
        if self.free:
            return 0 < slack_s > self._read_s()
        request = self.request
        self.service_s = request.counted_service_s = self._service_s()
        if slack_s <= 0:
            return False
        if not self.settings.feasibility:
            return True
        wait_s = request.counted_wait_s = self._wait_s()
        if wait_s + self.before_s + self.service_s > self.settings.safety_margin * slack_s:
            return False
        return not self.crowded or self._starts(slack_s)

    def _starts(self, slack_s: float) -> bool:
        """Whether it would pass the test at the start now: where a slot is free that is in the same step."""
        if self.request.may_clamp:
            return True
        answer = probable_tokens(self.of_tenant.lengths, self.answer_tokens, self.quantile())
        return self.of_pool.estimator.probable_s(self.prompt_tokens, answer) <= slack_s

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
        return self.before_s + self.of_pool.estimator.reading.seconds(self.prompt_tokens)

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
        if not (lengths.confident or self.crowded) or self._is_probe():
            return estimator.service_s(self.prompt_tokens, 0.0)
        return estimator.service_s(self.prompt_tokens, lengths.at(self.quantile(), self.answer_tokens))

    def quantile(self) -> float:
        """At which quantile of its lengths it is judged: the more of its share it gets, the higher."""
        if not self._quantile:
            rate = self.of_pool.estimator.rate
            self._quantile = 0.5
            if not (self.light or self.request.may_clamp) and rate:
                self._quantile += 0.4 * min(1.0, self.of_tenant.got.rate(self.now) / (rate * self.share))
        return self._quantile

    def _is_probe(self) -> bool:
        """Whether it is time to find out: refused for its lengths again and again, with nothing here to learn from."""
        return self.of_tenant.guessed_out >= PROBE_AFTER and not self.flow.tenant.busy

    def admit(self) -> None:
        """Write down what it was admitted with. The scheduler has the last word: there may be no room."""
        request = self.request
        assert self.level <= request.max_level, f"{request!r} at level {self.level}, {request.max_level} is allowed"
        request.on_trust = self.free or self._is_probe()
        request.length_quantile = self.quantile()
        self.of_tenant.guessed_out = 0
        request.level = self.level
        request.charge_tokens = self.cost_tokens
        request.read_tokens = self.prompt_tokens if self.settings.reading_line else 0
        request.predicted_wait_s = self.view.wait_s
        request.predicted_as_new = self.view.new
        request.expires_at, request.expires_for = expiry(
            request,
            self.prompt_tokens,
            self.answer_tokens,
            self.of_tenant.lengths,
            self.of_pool.estimator,
            self.settings,
        )

    def refuse(self, outcome: Outcome, reason: str, random: Callable[[], float], *, never: bool = False) -> Refused:
        """Say no, and when to come back: by the tenant's own line where it has one, by the pool's otherwise.

        `never`: coming back as it is cannot help.
        """
        self.request.level = self.level  # what it was judged at last
        rate, wait_s = self.of_pool.estimator.rate or 0.0, self.view.wait_s + (self.before_s if self.crowded else 0.0)
        own = self.flow.requests > 0 and outcome is not Outcome.NO_CAPACITY and self.settings.policies.fairness
        scope = "tenant" if own else "platform"
        if never:
            return Refused(outcome, reason, scope, wait_s, None)
        if outcome is Outcome.DEADLINE_INFEASIBLE and not self._fits_alone():
            return Refused(outcome, "too_long", scope, wait_s, None)
        now, book, work = self.now, self.of_tenant.appointments, self.cost_tokens
        if own:
            hint_s = book.hint(now, self.flow.work, work, rate * self.share, random)
        else:
            before = self.of_pool.pool.work
            if self.crowded:
                before += self.of_pool.estimator.unread_tokens * self.settings.weights.prompt
            hint_s = self.of_pool.appointments.hint(now, before, work, rate, random, guest=book)
        if reason == "no_slot":  # the books know who waits, and not who runs
            hint_s = min(LATEST_S, max(hint_s, wait_s * (1.0 + JITTER * random())))
        return Refused(outcome, reason, scope, wait_s, hint_s)

    def _fits_alone(self) -> bool:
        """Whether it would be in time without a wait, as what it is known to be."""
        margin, request = self.settings.safety_margin, self.request
        if not self.service_s < margin * (request.deadline - self.now):
            return False
        read_s = self.of_pool.estimator.reading.seconds(self.prompt_tokens)
        return read_s < margin * (request.first_token_by - self.now)


def expiry(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    lengths: Lengths,
    estimator: Estimator,
    settings: WeirSettings,
) -> tuple[float, str]:
    """Until when it may wait, and for what: its deadline, its first token, or its client's patience."""
    latest, why = inf, "deadline"
    if settings.policies.admission:
        latest, why = _latest_start(request, prompt_tokens, answer_tokens, lengths, estimator, settings)
    if request.ready:
        patient_until = request.start_by + max(0.0, request.ready_at - request.queued_at) + TURN_S
        if patient_until < latest:
            return patient_until, "patience"
    return latest, why


def _latest_start(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    lengths: Lengths,
    estimator: Estimator,
    settings: WeirSettings,
) -> tuple[float, str]:
    """When it could start at the latest. One that starts later starts for nobody.

    That may be in the past. It stays so: clamped to now, it would make the dead the most urgent.
    """
    if request.may_clamp or request.on_trust:
        shortest_s = estimator.before_s() + estimator.service_s(
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
