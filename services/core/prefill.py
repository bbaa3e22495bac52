"""The prefill model: time to first token as a linear function, fitted by least squares over fading samples.

    time to first token = start + per token * prompt tokens + per token before * unread tokens of others at its start

A batching worker gives the first token at the end of a step, hence the start: fitted as proportional, twenty tokens in
24 ms make a prompt of 1,500 look like two seconds. While sizes differ little, start and slope cannot be told apart; a
ridge draws the slope to the announced value, or without one to proportional:

    per token = (cov(tokens, s) + RIDGE * prior) / (var(tokens) + RIDGE)

`per token before` is 0 where slots prefill in parallel; else the pool prefills 1 / it tokens per second. While samples
are few it is drawn to the announced value. Bounds: no coefficient is negative, and at the mean sizes the line passes
through the mean time. See docs/architecture/mechanisms/estimator.md.
"""

from __future__ import annotations

from math import exp2

FADE = exp2(-1.0 / 200.0)
"""A sample weighs half after 200 more."""
RIDGE_TOKENS2 = 50.0**2
"""A variance of prompt sizes of this much (a spread of 50 tokens) weighs as much as the prior."""
FEW = 5.0
"""The prior of `per token before` weighs as much as this many samples."""


class PrefillModel:
    """The fitted line and its sums. All times are seconds."""

    __slots__ = (
        "_b", "_bb", "_bs", "_bt", "_n", "_s", "_t", "_ts", "_tt",
        "per_token_before_s", "per_token_s", "prior_before_s", "prior_s", "samples", "start_s",
    )  # fmt: skip

    def __init__(self, prior_s: float | None = None, prior_before_s: float = 0.0) -> None:
        self.prior_s = prior_s
        """Announced seconds per token; None: not announced."""
        self.prior_before_s = self.per_token_before_s = prior_before_s
        """Announced seconds per unread token of others; 0: slots are assumed to prefill in parallel."""
        self.per_token_s = prior_s or 0.0
        self.start_s = 0.0
        self.samples = 0
        self._n = self._t = self._s = self._ts = self._tt = 0.0
        self._b = self._bb = self._bs = self._bt = 0.0

    def add(self, seconds: float, tokens: float, before_tokens: float = 0.0) -> None:
        """Add a sample: a prompt of `tokens` took `seconds` to its first token, with `before_tokens` unread before."""
        self.samples += 1
        self._n = self._n * FADE + 1.0
        self._t = self._t * FADE + tokens
        self._s = self._s * FADE + seconds
        self._b = self._b * FADE + before_tokens
        self._ts = self._ts * FADE + tokens * seconds
        self._tt = self._tt * FADE + tokens * tokens
        self._bs = self._bs * FADE + before_tokens * seconds
        self._bt = self._bt * FADE + before_tokens * tokens
        self._bb = self._bb * FADE + before_tokens * before_tokens
        self._fit()

    def fade(self, share: float) -> None:
        """Reduce the weight of all samples to this share of it."""
        self._n *= share
        self._t *= share
        self._s *= share
        self._b *= share
        self._ts *= share
        self._tt *= share
        self._bs *= share
        self._bt *= share
        self._bb *= share

    def _fit(self) -> None:
        """Least squares in two unknowns, each drawn to its prior and cut off where it would be negative."""
        n = self._n
        mean_t, mean_s, mean_b = self._t / n, self._s / n, self._b / n
        prior = mean_s / mean_t if self.prior_s is None else self.prior_s
        ridge_b = RIDGE_TOKENS2 + (FEW / n) ** 2 * self._bb / n
        var_t = max(0.0, self._tt / n - mean_t * mean_t) + RIDGE_TOKENS2
        var_b = max(0.0, self._bb / n - mean_b * mean_b) + ridge_b
        cov_bt = self._bt / n - mean_b * mean_t
        above_t = self._ts / n - mean_t * mean_s + RIDGE_TOKENS2 * prior
        above_b = self._bs / n - mean_b * mean_s + ridge_b * self.prior_before_s
        apart = var_t * var_b - cov_bt * cov_bt  # 0 but for rounding where both always vary together
        before = max(0.0, (var_t * above_b - cov_bt * above_t) / apart) if apart > 0 else 0.0
        if before * mean_b > mean_s:
            before = mean_s / mean_b
        left_s = max(0.0, mean_s - before * mean_b)
        self.per_token_before_s = before
        self.per_token_s = min(max(0.0, (above_t - before * cov_bt) / var_t), left_s / mean_t)
        self.start_s = left_s - self.per_token_s * mean_t

    @property
    def pool_s(self) -> float:
        """Time of the whole pool that a prompt of the mean size takes; 0 where slots prefill in parallel."""
        return self.per_token_before_s * self._t / self._n if self._n else 0.0

    @property
    def mean_s(self) -> float:
        """The mean time to first token."""
        return self._s / self._n if self._n else 0.0

    def seconds(self, tokens: float, before_tokens: float = 0.0) -> float:
        """The expected time to first token of a prompt of this size; 0 while nothing is known."""
        return self.start_s + self.per_token_s * tokens + self.per_token_before_s * before_tokens

    def __repr__(self) -> str:
        return f"<PrefillModel {self.start_s * 1000:g} ms and {self.per_token_s * 1000:g} ms a token>"
