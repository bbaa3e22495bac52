"""What a request costs, and what it will cost before anybody knows.

One unit for all work, the token-equivalent:

    cost = prompt_tokens * prompt weight + completion_tokens * completion weight

A prompt token is one of many that a worker reads at once; a completion token takes a step of its own. The weights are
what each takes of a worker that is full, scaled so that a prompt token costs 1. Until that is measured, 1 and 2: the
weights of VTC (Sheng et al., OSDI 2024) and of the price lists of the trade.

Before an answer is written its length is a guess. `Lengths` learns the lengths that one tenant gets from one model, and
answers two questions for any limit: how long on average (that orders), and how long in nine cases of ten (that decides
whether it can be in time). A guess never costs a tenant more than it uses, because the charge is settled when the
request ends; it can only cost order.

**Cut answers.** An answer that ended at its limit, or whose client left, says only that it would have been *at least*
so long. To count it as ended would teach the estimate its own limits: clamp once, and everything seems short. To leave
it out would do the same, since the long ones are those that are cut. Such samples are censored, and the estimator for
them is Kaplan and Meier's (1958): with d the weight of the answers that ended at length x, and n that of all, cut or
not, that were at least so long,

    S(x) = product over lengths up to x of (1 - d / n)          the share that is longer than x

Then `at(q, m)` is the least x with S(x) <= 1 - q, at most m, and `expected(m)` is the area under S from 0 to m: the
mean of min(length, m) itself, not the mean cut off at m. Where the longest answers were cut, S stays above 0: they are
taken to go on to the limit that is asked about.

Bounds. Lengths of 1 to a million tokens are kept within 5 %, and exactly where they are all equal (`quantile.Sketch`);
a sample weighs half as much after 200 more; the tables are rebuilt when an eighth more samples have come, at the latest
at the 128th. The estimator takes it that the limit of a request says nothing about its length: a client that asks for
short limits only where it wants short answers is overestimated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from services.core.quantile import Sketch

CONFIDENT_SAMPLES = 20
_HALF_LIFE = 200
_ALPHA = 0.05
_LEAST, _MOST = 0.5, 1e6
_REFRESH = 128
_KEPT = 64
_NONE = (0.0,)
_NEVER = 1e-9
"""A share of answers below this is rounding."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Token-equivalents per token of prompt and of completion."""

    prompt: float = 1.0
    completion: float = 2.0

    def __post_init__(self) -> None:
        if not (self.prompt > 0 and self.completion > 0):
            raise ValueError(f"weights must be above 0, got {self.prompt} and {self.completion}")

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """The work of one answer."""
        return prompt_tokens * self.prompt + completion_tokens * self.completion

    @classmethod
    def calibrated(cls, prefill_s_per_token: float, decode_s_per_token: float) -> Weights:
        """The weights of a worker that was measured while full, scaled so that a prompt token costs 1."""
        if not (prefill_s_per_token > 0 and decode_s_per_token > 0):
            raise ValueError(f"times must be above 0 s, got {prefill_s_per_token} and {decode_s_per_token}")
        return cls(1.0, decode_s_per_token / prefill_s_per_token)


class Lengths:
    """Completion lengths of one tenant on one model. What it observes, its parent (the model's) observes too.

    With fewer than 20 samples it answers as its parent would; without a confident parent, as if lengths were spread
    evenly around `prior_share` of the limit.
    """

    __slots__ = (
        "_area",
        "_cut",
        "_ended",
        "_lengths",
        "_means",
        "_reached",
        "_rows",
        "_stale_at",
        "parent",
        "prior_share",
        "samples",
    )

    def __init__(self, parent: Lengths | None = None, prior_share: float = 0.5) -> None:
        if not 0 < prior_share <= 1:
            raise ValueError(f"prior_share must be above 0 and at most 1, got {prior_share}")
        self.parent = parent
        self.prior_share = prior_share
        self.samples = 0
        # Made when they are needed: many tenants never have an answer, and most never a cut one.
        self._ended: Sketch | None = None
        self._cut: Sketch | None = None
        self._stale_at = CONFIDENT_SAMPLES
        self._lengths: Sequence[float] = _NONE  # ascending, from 0
        self._reached: Sequence[float] = _NONE  # 1 - S: the share of answers that are at most so long
        self._area: Sequence[float] = _NONE  # under S, from 0 to this length
        self._means: dict[float, float] = {}  # by limit, until the next table: most clients ask for the same few
        self._rows: dict[tuple[int, ...], list[float]] = {}  # the same for several limits at once

    @property
    def confident(self) -> bool:
        """Whether it has seen enough to answer for itself."""
        return self.samples >= CONFIDENT_SAMPLES

    def observe(self, completion_tokens: float, *, cut: bool = False) -> None:
        """Learn from an answer; `cut` if it would have gone on (its limit, its deadline, its client left)."""
        if cut and completion_tokens <= 0:
            return  # it would have been at least nothing
        if self.parent is not None:
            self.parent.observe(completion_tokens, cut=cut)
        if cut and self._cut is None:
            self._cut = _sketch()
        if not cut and self._ended is None:
            self._ended = _sketch()
        this, other = (self._cut, self._ended) if cut else (self._ended, self._cut)
        assert this is not None
        this.add(completion_tokens)
        if other is not None:
            other.forget()
        self.samples += 1
        if self.samples >= self._stale_at:
            self._stale_at = self.samples + min(_REFRESH, 1 + self.samples // 8)
            self._tabulate()

    def expected(self, max_tokens: float) -> float:
        """The mean length of an answer that is cut at `max_tokens`."""
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        if source is None:
            return self.prior_share * max_tokens
        mean = source._means.get(max_tokens)
        if mean is None:
            mean = source._mean(max_tokens)
            if len(source._means) < _KEPT:
                source._means[max_tokens] = mean
        return mean

    def expected_at(self, limits: tuple[int, ...]) -> list[float]:
        """The same for several limits, which are those of one ladder."""
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        if source is None:
            return [self.prior_share * limit for limit in limits]
        row = source._rows.get(limits)
        if row is None:
            row = [self.expected(limit) for limit in limits]
            if len(source._means) < _KEPT:  # none of them was left out
                source._rows[limits] = row
        return row

    def at(self, q: float, max_tokens: float) -> float:
        """The length that a share q of the answers does not exceed, if they are cut at `max_tokens`."""
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        if source is None:
            return min(1.0, 2 * self.prior_share * q) * max_tokens
        length = source._quantile(q)
        return length if length < max_tokens else max_tokens

    def _mean(self, limit: float) -> float:
        """The area under S from 0 to the limit."""
        i = bisect_right(self._lengths, limit) - 1
        return self._area[i] + (limit - self._lengths[i]) * (1 - self._reached[i])

    def _quantile(self, q: float) -> float:
        """The least length at which S is at most 1 - q; infinity where no answer has shown that."""
        i = bisect_left(self._reached, q - _NEVER)
        return self._lengths[i] if i < len(self._lengths) else inf

    def _source(self) -> Lengths | None:
        if self.samples >= CONFIDENT_SAMPLES:
            return self
        return self.parent._source() if self.parent is not None else None

    def _tabulate(self) -> None:
        """Kaplan and Meier's product, from the shortest answer to the longest."""
        ended = self._ended.tally() if self._ended is not None else {}
        cut = self._cut.tally() if self._cut is not None else {}
        lengths, reached, area = [0.0], [0.0], [0.0]
        at_least = sum(weight for _, weight in ended.values()) + sum(weight for _, weight in cut.values())
        longer = 1.0
        for bucket in sorted(ended.keys() | cut.keys()):
            length, ends = ended[bucket] if bucket in ended else (cut[bucket][0], 0.0)
            area.append(area[-1] + (length - lengths[-1]) * longer)
            longer *= max(0.0, 1 - ends / at_least) if at_least > ends else 0.0
            longer = longer if longer > _NEVER else 0.0
            at_least -= ends + (cut[bucket][1] if bucket in cut else 0.0)
            lengths.append(length)
            reached.append(1 - longer)
        self._lengths, self._reached, self._area = lengths, reached, area
        self._means, self._rows = {}, {}

    def __repr__(self) -> str:
        if not self.confident:
            return f"<Lengths unsure, {self.samples} samples>"
        return f"<Lengths mean {self.expected(_MOST):g}, q90 {self.at(0.9, _MOST):g}, {self.samples} samples>"


def _sketch() -> Sketch:
    return Sketch(_ALPHA, half_life=_HALF_LIFE, least=_LEAST, most=_MOST)
