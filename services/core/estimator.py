"""The capacity of a pool's workers: docs/architecture/mechanisms/estimator.md. State: O(slots).

    R = (work done / slot-seconds spent on it, both fading) * live slots          while 90 % of the slots are taken

While fewer than ENOUGH samples exist at that load, R is what the workers announced, or else what was measured at any
load. Prefill is a linear model (`prefill.py`) times the quantile of its error. The error is relative to at least the
mean prefill: a short prompt that waits for a long one takes fifteen times its prediction, and with that factor every
long prompt would miss its deadline. The sketches' relative error is 2 %.

One slow answer teaches little: a time counts as at most OUTLIER times the expected one, and a few fast answers in a row
fade what was learned before (docs/decisions/073).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import exp2

from services.core.prefill import PrefillModel
from services.core.quantile import Sketch
from services.core.request import RUNNING, Request

FULL = 0.9
HALF_LIFE = 200.0
"""Samples after which one weighs half: seconds under load, and enough to smooth the mix."""
ENOUGH = 20
"""Samples from which a measurement replaces what was announced."""
SPENT_ENDS = 64
"""The heap of expected ends is cleaned when it exceeds two entries per busy slot by this many."""


LEAD_TOKENS, LEAD_SHARE, MAX_LEAD_S = 1.0, 0.25, 0.05
"""A request is sent ahead by the time of this many tokens, by at most this share of an answer's time, and by at most
this many seconds. A worker batches in steps of one token: what arrives after a step began waits for the next one."""
MAX_LATE_ENDS = 0.25
"""Nothing is sent ahead where more answers than this share end much later than expected: it would wait at the worker,
where no lighter tenant can precede it."""
END_WEIGHT = 0.05
"""Of one sample of an end."""
PROBABLE = 0.85
FITTED = 5
"""Prompts before the error of the line counts: an announced value has no start term, and may be wrong a hundredfold."""
OUTLIER = 5.0
"""A time counts as at most this many times the expected one: what one slow answer teaches is bounded."""
FASTER_PREFILL, FASTER_PACE = 3.0, 1.5
"""A prefill, and a time per token, that is this many times shorter than expected is a sign of faster workers. Prefills
vary more: they wait for steps and for one another."""
FASTER_RUN, FASTER_FADE = 5, 0.25
"""After this many signs in a row, each further one reduces the weight of all that was learned before to this share: a
pool that is fast again is known to be within ten answers."""
_FADE = exp2(-1.0 / HALF_LIFE)


class Ratio:
    """A fading sum divided by a fading sum."""

    __slots__ = ("above", "below", "samples")

    def __init__(self) -> None:
        self.above = 0.0
        self.below = 0.0
        self.samples = 0

    def add(self, above: float, below: float) -> None:
        """Add a sample; earlier samples lose weight."""
        self.above = self.above * _FADE + above
        self.below = self.below * _FADE + below
        self.samples += 1

    def fade(self, share: float) -> None:
        """Reduce the weight of all samples to this share of it."""
        self.above *= share
        self.below *= share

    @property
    def value(self) -> float | None:
        """The ratio; None while the divisor is 0."""
        return self.above / self.below if self.below > 0 else None


class Estimator:
    """One pool's slots, and their measured speed. All times are seconds, all work is in token-equivalents."""

    __slots__ = (
        "_any",
        "_changed_at",
        "_ends",
        "_faster_pace",
        "_faster_prefill",
        "_full",
        "_full_s",
        "_prefill_error",
        "_starts",
        "_token_s",
        "announced_per_slot_s",
        "busy",
        "late_ends",
        "mean_cost",
        "median_s",
        "prefill_model",
        "rate",
        "slots",
        "unread_tokens",
    )

    def __init__(
        self,
        *,
        work_per_slot_s: float | None = None,
        prefill_s_per_token: float | None = None,
        s_per_token: float | None = None,
        readers: int = 0,
    ) -> None:
        """What workers announce. `readers`: how many workers prefill one prompt after another; 0: not known."""
        self.slots = 0
        self.busy = 0
        self.unread_tokens = 0
        """Prompt tokens of running requests that are not known to be prefilled."""
        self.rate: float | None = None
        """R, work per second of all slots; None while unknown."""
        self.mean_cost = 0.0
        self.announced_per_slot_s = work_per_slot_s
        self._full = Ratio()
        self._any = Ratio()
        self._full_s = 0.0
        self._changed_at = 0.0
        self._ends: list[tuple[float, int, Request]] = []
        self._starts = 0
        self.prefill_model = PrefillModel(
            prefill_s_per_token, (prefill_s_per_token or 0.0) / readers if readers else 0.0
        )
        self._prefill_error = Sketch(0.02, half_life=HALF_LIFE, refresh=64)
        self._token_s = Sketch(0.02, half_life=HALF_LIFE, min_value=1e-6, refresh=64)
        self._faster_prefill = 0
        self._faster_pace = 0
        self.late_ends = 1.0
        """The share of recent answers that ended much later than expected; 1 while nothing is known."""
        self.median_s = 0.0
        """Median time per token after the first; 0 while unknown."""
        if s_per_token:
            self.learn_pace(s_per_token, 1.0)

    # ---- slots

    @property
    def free(self) -> int:
        """Unused slots."""
        return max(0, self.slots - self.busy)

    def inherit(self, before: Estimator) -> None:
        """Take over the slots, but not the measurements, of the estimator that this one replaces."""
        self.slots, self.busy, self.unread_tokens = before.slots, before.busy, before.unread_tokens
        self._update_rate()

    def resize(self, now: float, slots: int) -> None:
        """Set the number of live slots. Raises ValueError if it is negative."""
        if slots < 0:
            raise ValueError(f"slots must be at least 0, got {slots}")
        self._advance(now)
        self.slots = slots
        self._update_rate()

    def start(self, now: float, request: Request, service_s: float) -> None:
        """A request takes a slot, for about `service_s`."""
        self._advance(now)
        self.busy += 1
        request.full_s = self._full_s
        self._starts += 1
        if len(self._ends) > SPENT_ENDS + 2 * self.busy:  # most are of requests that have ended
            self._ends = [end for end in self._ends if end[2].stage is RUNNING]
            heapify(self._ends)
        request.slot_at, request.ends_at = now, now + service_s
        heappush(self._ends, (request.ends_at, self._starts, request))

    def stop(self, now: float) -> None:
        """A slot is free again."""
        self._advance(now)
        self.busy -= 1
        assert self.busy >= 0, f"a slot was given back twice: {self!r}"

    def begin_prefill(self, request: Request, tokens: int) -> None:
        """Record that the request's prompt is unread at a worker, behind all that is unread now."""
        request.read_tokens, request.read_before_tokens = tokens, float(self.unread_tokens)
        self.unread_tokens += tokens

    def end_prefill(self, request: Request) -> None:
        """Record that the prompt is prefilled, or its request ended. A second call changes nothing."""
        if request.read_tokens:
            unread = self.unread_tokens = self.unread_tokens - request.read_tokens
            assert unread >= 0, (
                f"{unread} tokens are unread, without the {request.read_tokens} of {request!r}: {self!r}"
            )
            request.read_tokens = 0

    def _advance(self, now: float) -> None:
        if self.busy >= FULL * self.slots:
            self._full_s += now - self._changed_at
        self._changed_at = now

    # ---- learning

    def learn(
        self, now: float, request: Request, work: float, prompt_tokens: float = 0.0, answer_tokens: float = 0.0
    ) -> None:
        """Add a sample: the request's slot did this much work, from its start until now.

        Its time is bounded by what these tokens should take, and not at all without them.
        """
        self.mean_cost = work if not self._any.samples else self.mean_cost + 0.02 * (work - self.mean_cost)
        spent_s = now - request.slot_at
        if spent_s <= 0:
            return
        full, rate = self._full_s - request.full_s >= FULL * spent_s, self.rate
        if prompt_tokens and rate and spent_s * rate > OUTLIER * work * self.slots:
            usual_s = self.service_s(prompt_tokens, answer_tokens)
            usual_s += self.prefill_model.per_token_before_s * request.read_before_tokens
            spent_s = min(spent_s, OUTLIER * max(usual_s, max(work, self.mean_cost) * self.slots / rate))
        self._any.add(work, spent_s)
        if full:
            self._full.add(work, spent_s)
        elif self._full.samples > ENOUGH and rate and self._full.below * rate > ENOUGH * self.mean_cost * self.slots:
            self._full.fade(_FADE)  # what was seen under load grows old, so that the next samples under load count
        self._update_rate()

    def learn_prefill(self, seconds: float, prompt_tokens: float, before_tokens: float = 0.0) -> None:
        """Add a sample: seconds from start to first token, with `before_tokens` of others unread at the start."""
        if prompt_tokens <= 0:
            return
        predicted = self.prefill_model.seconds(prompt_tokens, before_tokens)
        if seconds * FASTER_PREFILL < predicted:
            self._faster_prefill += 1
            if self._faster_prefill > FASTER_RUN:
                self._forget()
        else:
            self._faster_prefill = 0
        if predicted > 0 and self.prefill_model.samples >= FITTED:
            usual = max(predicted, self.prefill_model.mean_s)
            if seconds > OUTLIER * usual:
                seconds = OUTLIER * usual
            self._prefill_error.add(max(0.0, 1.0 + (seconds - predicted) / usual))
        self.prefill_model.add(seconds, prompt_tokens, before_tokens)

    def learn_pace(self, seconds: float, tokens: float) -> None:
        """Add a sample: the tokens after the first took this long."""
        if tokens > 0 and seconds > 0:
            token_s, median_s = seconds / tokens, self.median_s
            if token_s * FASTER_PACE < median_s:
                self._faster_pace += 1
                if self._faster_pace > FASTER_RUN:
                    self._forget()
            else:
                self._faster_pace = 0
                if token_s > OUTLIER * median_s > 0.0:
                    token_s = OUTLIER * median_s
            self._token_s.add(token_s)
            self.median_s = self._token_s.quantile(0.5) or 0.0

    def _forget(self) -> None:
        """The workers have become faster: what was learned before loses most of its weight."""
        self._any.fade(FASTER_FADE)
        self._full.fade(FASTER_FADE)
        self.prefill_model.fade(FASTER_FADE)
        self._prefill_error.fade(FASTER_FADE)
        self._token_s.fade(FASTER_FADE)

    def learn_end(self, now: float, request: Request) -> None:
        """Add a sample: an answer ended, in time for a request that had been sent ahead of its end, or later."""
        late = now > request.ends_at + LEAD_TOKENS * self.median_s
        self.late_ends += END_WEIGHT * (late - self.late_ends)

    def _update_rate(self) -> None:
        full = self._full
        if full.samples >= ENOUGH and full.below > 0:
            per_slot: float | None = full.above / full.below
        else:
            per_slot = self.announced_per_slot_s or full.value or self._any.value
        self.rate = per_slot * self.slots if per_slot and self.slots else None
        if self.rate and min(self._any.samples, self.prefill_model.samples) >= ENOUGH:
            read_s = self.prefill_model.pool_s
            if read_s * self.rate > self.mean_cost > 0:  # prefill saturates before the slots do
                self.rate = self.mean_cost / read_s

    # ---- estimates

    def service_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Mean time that a request of these sizes holds a slot, if no other prompt is prefilled. Prefill gives the
        first token."""
        prefill = self.prefill_model
        read_s = prefill.start_s + prefill.per_token_s * prompt_tokens
        return read_s + (answer_tokens - 1.0 if answer_tokens > 1.0 else 0.0) * self.median_s

    def probable_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """The 85 % quantile of the time that a request of these sizes holds a slot."""
        return self.prefill_s(prompt_tokens, PROBABLE) + max(0.0, answer_tokens - 1.0) * self.token_s(PROBABLE)

    def prefill_backlog_s(self, waiting_tokens: float = 0.0) -> float:
        """Seconds to prefill what is unread now and `waiting_tokens` more; 0 while unknown."""
        return self.prefill_model.per_token_before_s * (self.unread_tokens + waiting_tokens)

    def prefill_s(self, prompt_tokens: float, q: float | None = None) -> float:
        """Seconds to prefill a prompt behind what is unread now: the mean, or the quantile q. 0 while unknown."""
        read_s = self.prefill_model.seconds(prompt_tokens, self.unread_tokens)
        factor = self._prefill_error.quantile(q) if q is not None else None
        return read_s if factor is None else read_s * factor

    def announced_prefill_s(self, prompt_tokens: float) -> float:
        """Seconds to prefill a prompt as the workers announce, or as measured if that is shorter; 0 if they announce
        nothing. No sample lengthens it.
        """
        announced_s = self.prefill_model.prior_s
        if announced_s is None:
            return 0.0
        return min(announced_s * prompt_tokens, self.prefill_model.seconds(prompt_tokens))

    def token_s(self, q: float) -> float:
        """Seconds per token of an answer at the quantile q; 0 while unknown."""
        return self._token_s.quantile(q) or 0.0

    @property
    def lead_s(self) -> float:
        """How long before the expected end of an answer the next request is sent to its worker; 0: not before it."""
        if self.late_ends > MAX_LATE_ENDS or not self.rate:
            return 0.0
        service_s = self.mean_cost * self.slots / self.rate
        return min(LEAD_TOKENS * self.median_s, LEAD_SHARE * service_s, MAX_LEAD_S)

    def next_slot_s(self, now: float) -> float:
        """Seconds until the next slot is free: the earliest expected end of a running request.

        Long requests that started together end together, so the mean time between two ends is used only if the
        earliest end is overdue.
        """
        if self.busy < self.slots or not self.rate:
            return 0.0
        ends = self._ends
        while ends and ends[0][2].stage is not RUNNING:
            heappop(ends)
        if ends and ends[0][0] > now:
            return ends[0][0] - now
        return self.mean_cost / self.rate

    def __repr__(self) -> str:
        rate = f"{self.rate:g} tokens/s" if self.rate else "rate unknown"
        return f"<Estimator {self.busy}/{self.slots} slots, {rate}, {self.token_s(0.5) * 1000:g} ms a token>"
