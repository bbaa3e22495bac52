"""What the workers of a pool can do: work per second, time per token, time to read a prompt.

Capacity is measured where it shows, while at least 90 % of the slots are taken:

    R = (work done / slot-seconds spent on it, both fading) * slots that live now

Per slot, so that a lost worker shows at once and not when the average has noticed. A ratio of sums, not a mean of
ratios: short answers come often and say little. Work that was cancelled counts, since it took its slot like any other.
Before anything was measured at that load, R is what the workers announced; without that, what was measured at any load.

Time per token and prefill time are kept as sketches, because admission asks for medians and for cautious quantiles:
a promise kept for the median is broken for half. Reading a prompt is a start and a slope (`prefill.py`), times the
factor by which that has been off. A short prompt is judged by the usual time of one, since beside its own any wait is
huge: one that waited for a long prompt took fifteen times what was predicted, and by that factor no long one would be
in time.

Bound: the sketches' relative error (`quantile.Sketch`), 2 %. State: O(slots).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import exp2

from services.core.prefill import PrefillModel
from services.core.quantile import Sketch
from services.core.request import RUNNING, Request

FULL = 0.9
HALF_LIFE = 200.0
"""Samples after which one weighs half: seconds under load, and long enough to smooth the mix."""
ENOUGH = 20
"""Samples from which a measurement is preferred to what was announced."""
SPENT_ENDS = 64
"""Expected ends of requests that have ended, kept at least until there are so many."""


PROBABLE = 0.85
FITTED = 5
"""Prompts read before it counts how far off the line is: what was announced knows no start, and is off by a hundred."""
_FADE = exp2(-1.0 / HALF_LIFE)


class Ratio:
    """A fading sum over a fading sum."""

    __slots__ = ("above", "below", "samples")

    def __init__(self) -> None:
        self.above = 0.0
        self.below = 0.0
        self.samples = 0

    def add(self, above: float, below: float) -> None:
        """Count a sample; what came before it weighs a little less."""
        self.above = self.above * _FADE + above
        self.below = self.below * _FADE + below
        self.samples += 1

    @property
    def value(self) -> float | None:
        """The ratio; None while there is nothing to divide by."""
        return self.above / self.below if self.below > 0 else None


class Estimator:
    """One pool's slots, and what they have been seen to do. All times are seconds, all work token-equivalents."""

    __slots__ = (
        "_any",
        "_changed_at",
        "_ends",
        "_full",
        "_full_s",
        "_prefill_error",
        "_starts",
        "_token_s",
        "announced_per_slot_s",
        "busy",
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
        """What is announced. `readers`: workers that each read one prompt after another; 0: not known to be such."""
        self.slots = 0
        self.busy = 0
        self.unread_tokens = 0
        """Of prompts that have started: what is not known to be read."""
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
        self._token_s = Sketch(0.02, half_life=HALF_LIFE, least=1e-6, refresh=64)
        self.median_s = 0.0
        """Per token of an answer after the first, at the median; 0 while unknown."""
        if s_per_token:
            self.learn_pace(s_per_token, 1.0)

    # ---- slots

    @property
    def free(self) -> int:
        """Slots that are not used."""
        return max(0, self.slots - self.busy)

    def inherit(self, before: Estimator) -> None:
        """Stand in for another one from here on: the slots are the same, what is known of them is not."""
        self.slots, self.busy, self.unread_tokens = before.slots, before.busy, before.unread_tokens
        self._update_rate()

    def resize(self, now: float, slots: int) -> None:
        """This many slots live from now on."""
        if slots < 0:
            raise ValueError(f"slots must be at least 0, got {slots}")
        self._pass(now)
        self.slots = slots
        self._update_rate()

    def start(self, now: float, request: Request, service_s: float) -> None:
        """A slot is taken, for about so long."""
        self._pass(now)
        self.busy += 1
        request.full_s = self._full_s
        self._starts += 1
        if len(self._ends) > SPENT_ENDS + 2 * self.busy:  # mostly of requests that have ended
            self._ends = [end for end in self._ends if end[2].stage is RUNNING]
            heapify(self._ends)
        heappush(self._ends, (now + service_s, self._starts, request))

    def stop(self, now: float) -> None:
        """A slot is free again."""
        self._pass(now)
        self.busy -= 1
        assert self.busy >= 0, f"a slot was given back twice: {self!r}"

    def begin_prefill(self, request: Request, tokens: int) -> None:
        """It has started, and this is to be read of it, after all that is unread now."""
        request.read_tokens, request.read_before_tokens = tokens, self.unread_tokens
        self.unread_tokens += tokens

    def end_prefill(self, request: Request) -> None:
        """Its prompt has been read, or it has ended: no request waits for that any more. Once more changes nothing."""
        if request.read_tokens:
            unread = self.unread_tokens = self.unread_tokens - request.read_tokens
            assert unread >= 0, (
                f"{unread} tokens are unread, without the {request.read_tokens} of {request!r}: {self!r}"
            )
            request.read_tokens = 0

    def _pass(self, now: float) -> None:
        if self.busy >= FULL * self.slots:
            self._full_s += now - self._changed_at
        self._changed_at = now

    # ---- learning

    def learn(self, now: float, request: Request, work: float) -> None:
        """The request's slot did this much work from its start until now."""
        self.mean_cost = work if not self._any.samples else self.mean_cost + 0.02 * (work - self.mean_cost)
        spent_s = now - request.started_at
        if spent_s <= 0:
            return
        self._any.add(work, spent_s)
        if self._full_s - request.full_s >= FULL * spent_s:
            self._full.add(work, spent_s)
        self._update_rate()

    def learn_prefill(self, seconds: float, prompt_tokens: float, before_tokens: float = 0.0) -> None:
        """The first token came this long after the start, when so much of others was unread."""
        if prompt_tokens <= 0:
            return
        predicted = self.prefill_model.seconds(prompt_tokens, before_tokens)
        if predicted > 0 and self.prefill_model.samples >= FITTED:
            usual = max(predicted, self.prefill_model.mean_s)
            self._prefill_error.add(max(0.0, 1.0 + (seconds - predicted) / usual))
        self.prefill_model.add(seconds, prompt_tokens, before_tokens)

    def learn_pace(self, seconds: float, tokens: float) -> None:
        """The tokens after the first took this long."""
        if tokens > 0 and seconds > 0:
            self._token_s.add(seconds / tokens)
            self.median_s = self._token_s.quantile(0.5) or 0.0

    def _update_rate(self) -> None:
        full = self._full
        if full.samples >= ENOUGH and full.below > 0:
            per_slot: float | None = full.above / full.below
        else:
            per_slot = self.announced_per_slot_s or full.value or self._any.value
        self.rate = per_slot * self.slots if per_slot and self.slots else None
        if self.rate and min(self._any.samples, self.prefill_model.samples) >= ENOUGH:
            read_s = self.prefill_model.pool_s
            if read_s * self.rate > self.mean_cost > 0:  # reading fills the time before the slots are full
                self.rate = self.mean_cost / read_s

    # ---- what is asked of it

    def service_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """How long a request of these sizes holds a slot where no other prompt is read, on average. Reading it gives
        the first token."""
        prefill = self.prefill_model
        read_s = prefill.start_s + prefill.per_token_s * prompt_tokens
        return read_s + (answer_tokens - 1.0 if answer_tokens > 1.0 else 0.0) * self.median_s

    def probable_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """How long a request of these sizes holds a slot, in 85 cases of 100."""
        return self.prefill_s(prompt_tokens, PROBABLE) + max(0.0, answer_tokens - 1.0) * self.token_s(PROBABLE)

    def prefill_backlog_s(self, waiting_tokens: float = 0.0) -> float:
        """Seconds until what is unread now has been read, and this much more that stands in line. 0 while unknown."""
        return self.prefill_model.per_token_before_s * (self.unread_tokens + waiting_tokens)

    def prefill_s(self, prompt_tokens: float, q: float | None = None) -> float:
        """Seconds to read a prompt after what is unread now: on average, or at a quantile. 0 while unknown."""
        read_s = self.prefill_model.seconds(prompt_tokens, self.unread_tokens)
        factor = self._prefill_error.quantile(q) if q is not None else None
        return read_s if factor is None else read_s * factor

    def token_s(self, q: float) -> float:
        """Seconds per token of an answer at a quantile. 0 while unknown."""
        return self._token_s.quantile(q) or 0.0

    def next_slot_s(self, now: float) -> float:
        """Seconds until the next slot comes free: the first end that is expected.

        Long requests fall into step, and then the mean time between two ends says little about the next one. Where one
        is overdue the mean has to serve.
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
