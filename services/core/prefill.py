"""How long a prompt takes to be read: a start, so much for each of its tokens, and for each that is read before it.

    time to first token = start + per token * prompt tokens + per token before * tokens that others had still to read

A worker that batches gives the first token at the end of a step, so even the shortest prompt waits for one. Taken as
proportional, that start is learned as a price per token: twenty tokens in 24 ms make a prompt of 1,500 look like two
seconds, and it is refused. So a line is fitted, by least squares over samples that fade.

While prompts have been of one size nothing tells start and slope apart. Then what is announced decides, or without it
all is taken for slope. It goes on deciding to the degree that sizes differ little (a ridge towards the prior):

    per token = (cov(tokens, s) + RIDGE * prior) / (var(tokens) + RIDGE)

**Prompts before it.** A worker that batches reads one prompt after another, at most a chunk a step, so a free slot is
no promise that reading begins. What others had still to read when a request started is known, and the time that this
added is fitted as the slope is. Where slots read side by side, each at its own pace, it comes out as nothing. It says
how fast the pool reads, `1 / per token before` tokens a second, with whatever is written meanwhile. While samples are
few they are drawn to what is announced of it: two of them make a line of anything.

An answer that is cut before its first token teaches nothing of how long reading takes, and those that are read are the
lucky ones. With what was before each they are no biased sample: the others had more before them, and the line says so.

Bounds: no part is negative, and at the mean sizes the line goes through the mean time. State: ten sums.
"""

from __future__ import annotations

from math import exp2

FADE = exp2(-1.0 / 200.0)
"""A sample weighs half after 200 more."""
RIDGE_TOKENS2 = 50.0**2
"""Sizes that spread by 50 tokens count as much as the prior."""
FEW = 5.0
"""The prior of what is before a prompt weighs as much as these: two samples make a line of anything."""


class PrefillModel:
    """The line, and what it was fitted to."""

    __slots__ = (
        "_b", "_bb", "_bs", "_bt", "_n", "_s", "_t", "_ts", "_tt",
        "per_token_before_s", "per_token_s", "prior_before_s", "prior_s", "samples", "start_s",
    )  # fmt: skip

    def __init__(self, prior_s: float | None = None, prior_before_s: float = 0.0) -> None:
        self.prior_s = prior_s
        """Announced seconds per token; None: nothing was."""
        self.prior_before_s = self.per_token_before_s = prior_before_s
        """The same for a token of those before it. 0: each slot is thought to read for itself."""
        self.per_token_s = prior_s or 0.0
        self.start_s = 0.0
        self.samples = 0
        self._n = self._t = self._s = self._ts = self._tt = 0.0
        self._b = self._bb = self._bs = self._bt = 0.0

    def add(self, seconds: float, tokens: float, before_tokens: float = 0.0) -> None:
        """A prompt of so many tokens was read in so long, when so many of others had still to be read."""
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

    def _fit(self) -> None:
        """Least squares in two unknowns, each drawn to what is announced of it; what it may not be is cut off."""
        n = self._n
        mean_t, mean_s, mean_b = self._t / n, self._s / n, self._b / n
        prior = mean_s / mean_t if self.prior_s is None else self.prior_s
        ridge_b = RIDGE_TOKENS2 + (FEW / n) ** 2 * self._bb / n
        var_t = max(0.0, self._tt / n - mean_t * mean_t) + RIDGE_TOKENS2
        var_b = max(0.0, self._bb / n - mean_b * mean_b) + ridge_b
        cov_bt = self._bt / n - mean_b * mean_t
        above_t = self._ts / n - mean_t * mean_s + RIDGE_TOKENS2 * prior
        above_b = self._bs / n - mean_b * mean_s + ridge_b * self.prior_before_s
        apart = var_t * var_b - cov_bt * cov_bt  # 0 where the two always went together, but for rounding
        before = max(0.0, (var_t * above_b - cov_bt * above_t) / apart) if apart > 0 else 0.0
        if before * mean_b > mean_s:
            before = mean_s / mean_b
        left_s = max(0.0, mean_s - before * mean_b)
        self.per_token_before_s = before
        self.per_token_s = min(max(0.0, (above_t - before * cov_bt) / var_t), left_s / mean_t)
        self.start_s = left_s - self.per_token_s * mean_t

    @property
    def pool_s(self) -> float:
        """How much time of the whole pool a prompt of the usual size takes; 0 where each slot reads for itself."""
        return self.per_token_before_s * self._t / self._n if self._n else 0.0

    @property
    def mean_s(self) -> float:
        """How long prompts have taken, whatever their size."""
        return self._s / self._n if self._n else 0.0

    def seconds(self, tokens: float, before_tokens: float = 0.0) -> float:
        """How long a prompt of this size should take with so much before it; 0 while nothing is known."""
        return self.start_s + self.per_token_s * tokens + self.per_token_before_s * before_tokens

    def __repr__(self) -> str:
        return f"<PrefillModel {self.start_s * 1000:g} ms and {self.per_token_s * 1000:g} ms a token>"
