"""The cost of a request, and the estimate of its answer length: docs/architecture/mechanisms/cost.md.

    cost = prompt_tokens * prompt weight + completion_tokens * completion weight          in token-equivalents
    S(x) = product over lengths up to x of (1 - d / n)                                    the share longer than x

S is the Kaplan-Meier estimator (1958), since answers that were cut (limit, deadline, disconnect) are censored samples:
d is the weight of the answers that ended at length x, n the weight of all that were at least that long. Lengths of 1 to
a million tokens are kept within 5 %, and exactly if all are equal (`quantile.Sketch`). A sample weighs half after 200
more. Tables are rebuilt after an eighth more samples, at most 128.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from services.core.quantile import Sketch

CONFIDENT_SAMPLES = 20
FIRST_OPEN_TOKENS = 256
"""The longest likely answer to an open-ended request while too few answers are known."""
LIKELY = 0.95
"""Share of answers that are at most as long as what an open-ended request is planned with."""
_HALF_LIFE = 200
_ALPHA = 0.05
_MIN, _MAX = 0.5, 1e6
_REFRESH = 128
_KEPT = 64
_NONE = (0.0,)
_NEVER = 1e-9
"""A share of answers below this is rounding."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Token-equivalents per prompt token and per completion token. Raises ValueError unless both are above 0."""

    prompt: float = 1.0
    completion: float = 2.0

    def __post_init__(self) -> None:
        if not (self.prompt > 0 and self.completion > 0):
            raise ValueError(f"weights must be above 0, got {self.prompt} and {self.completion}")

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """The cost of one answer, in token-equivalents."""
        return prompt_tokens * self.prompt + completion_tokens * self.completion

    @classmethod
    def calibrated(cls, prefill_s_per_token: float, decode_s_per_token: float) -> Weights:
        """The weights of a worker from its times at full load, scaled so that a prompt token costs 1.

        Raises ValueError unless both times are above 0.
        """
        if not (prefill_s_per_token > 0 and decode_s_per_token > 0):
            raise ValueError(f"times must be above 0 s, got {prefill_s_per_token} and {decode_s_per_token}")
        return cls(1.0, decode_s_per_token / prefill_s_per_token)


class Lengths:
    """Completion lengths of one tenant on one model. Its parent (the model's) gets the same samples.

    With fewer than 20 samples it answers as its parent does. Without a confident parent, lengths are assumed to be
    uniform around `prior_share` of the limit. Raises ValueError unless `prior_share` is in (0, 1].
    """

    __slots__ = (
        "_area",
        "_cut",
        "_ended",
        "_lengths",
        "_likely",
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
        # Made on first use: many tenants never have an answer, and most never a cut one.
        self._ended: Sketch | None = None
        self._cut: Sketch | None = None
        self._stale_at = CONFIDENT_SAMPLES
        self._lengths: Sequence[float] = _NONE  # ascending, from 0
        self._reached: Sequence[float] = _NONE  # 1 - S: the share of answers that are at most this long
        self._area: Sequence[float] = _NONE  # under S, from 0 to this length
        self._likely = 0  # computed on the first use
        self._means: dict[float, float] = {}  # by limit, until the next table: most requests use the same few limits
        self._rows: dict[tuple[int, ...], list[float]] = {}  # the same for several limits at once

    @property
    def confident(self) -> bool:
        """Whether it has enough samples of its own."""
        return self.samples >= CONFIDENT_SAMPLES

    @property
    def guessed(self) -> bool:
        """Whether the expected length is a part of the limit, since there are too few samples."""
        source: Lengths | None = self
        while source is not None and source.samples < CONFIDENT_SAMPLES:
            source = source.parent
        return source is None

    def observe(self, completion_tokens: float, *, cut: bool = False) -> None:
        """Add an answer; `cut` if it would have gone on (limit, deadline, disconnect)."""
        if cut and completion_tokens <= 0:
            return  # a bound of 0 tokens says nothing
        if self.parent is not None:
            self.parent.observe(completion_tokens, cut=cut)
        if cut:
            this = self._cut = self._cut or _sketch()
            other = self._ended
        else:
            this = self._ended = self._ended or _sketch()
            other = self._cut
        this.add(completion_tokens)
        if other is not None:
            other.forget()
        self.samples += 1
        if self.samples >= self._stale_at:
            self._stale_at = self.samples + min(_REFRESH, 1 + self.samples // 8)
            self._tabulate()

    def expected(self, max_tokens: float) -> float:
        """The mean length of an answer with the limit `max_tokens`."""
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
        """`expected` for several limits: those of one ladder."""
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        if source is None:
            return [self.prior_share * limit for limit in limits]
        row = source._rows.get(limits)
        if row is None:
            row = [self.expected(limit) for limit in limits]
            if len(source._means) < _KEPT:  # so all of this row are kept
                source._rows[limits] = row
        return row

    def at(self, q: float, max_tokens: float) -> float:
        """The length that a share q of the answers does not exceed, with the limit `max_tokens`."""
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        if source is None:
            return min(1.0, 2 * self.prior_share * q) * max_tokens
        length = source._quantile(q)
        return length if length < max_tokens else max_tokens

    def likely(self) -> int:
        """The longest likely answer where the client sets no limit, in tokens: the q95 of lengths, at least 1.

        It is at most the longest answer that is known. Where the curve stays above that, because the longest ones were
        cut, it is taken to end there (Efron, "The two sample problem with censored data", 1967).
        """
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        if source is None:
            return FIRST_OPEN_TOKENS
        if not source._likely:
            source._likely = max(1, _whole(min(source._quantile(LIKELY), source._lengths[-1])))
        return source._likely

    def longest(self) -> int:
        """The longest answer that is known, in tokens; 0 while too few are."""
        source = self if self.samples >= CONFIDENT_SAMPLES else self._source()
        return 0 if source is None else _whole(source._lengths[-1])

    def _mean(self, limit: float) -> float:
        """The area under S from 0 to the limit."""
        i = bisect_right(self._lengths, limit) - 1
        return self._area[i] + (limit - self._lengths[i]) * (1 - self._reached[i])

    def _quantile(self, q: float) -> float:
        """The smallest length at which S is at most 1 - q; infinity if no answer was that long."""
        i = bisect_left(self._reached, q - _NEVER)
        return self._lengths[i] if i < len(self._lengths) else inf

    def _source(self) -> Lengths | None:
        if self.samples >= CONFIDENT_SAMPLES:
            return self
        return self.parent._source() if self.parent is not None else None

    def _tabulate(self) -> None:
        """The Kaplan-Meier product, from the shortest answer to the longest."""
        ended = self._ended.buckets() if self._ended is not None else {}
        cut = self._cut.buckets() if self._cut is not None else {}
        lengths, reached, area = [0.0], [0.0], [0.0]
        remaining = sum([weight for _, weight in ended.values()], 0.0)
        remaining += sum([weight for _, weight in cut.values()], 0.0)
        longer = 1.0
        for bucket in sorted(ended.keys() | cut.keys()):
            length, ends = ended[bucket] if bucket in ended else (cut[bucket][0], 0.0)
            area.append(area[-1] + (length - lengths[-1]) * longer)
            longer *= max(0.0, 1 - ends / remaining) if remaining > ends else 0.0
            longer = longer if longer > _NEVER else 0.0
            remaining -= ends + (cut[bucket][1] if bucket in cut else 0.0)
            lengths.append(length)
            reached.append(1 - longer)
        self._lengths, self._reached, self._area = lengths, reached, area
        self._means, self._rows, self._likely = {}, {}, 0

    def __repr__(self) -> str:
        if not self.confident:
            return f"<Lengths unsure, {self.samples} samples>"
        return f"<Lengths mean {self.expected(_MAX):g}, q90 {self.at(0.9, _MAX):g}, {self.samples} samples>"


def _whole(tokens: float) -> int:
    """Rounded up, but for what a mean of equal lengths is off by."""
    return ceil(tokens - 1e-6)


def _sketch() -> Sketch:
    return Sketch(_ALPHA, half_life=_HALF_LIFE, min_value=_MIN, max_value=_MAX)
