"""How long a prompt takes to be read: a start, and so much for each token.

    time to first token = start + per token * prompt tokens

A worker that batches gives the first token at the end of a step, so even the shortest prompt waits for one. Taken as
proportional, that start is learned as a price per token: twenty tokens in 24 ms make a prompt of 1,500 look like two
seconds, and it is refused. So a line is fitted, by least squares over samples that fade.

While prompts have been of one size nothing tells start and slope apart. Then what is announced decides, or without it
all is taken for slope. It goes on deciding to the degree that sizes differ little (a ridge towards the prior):

    per token = (cov(tokens, s) + RIDGE * prior) / (var(tokens) + RIDGE)

Bounds: neither part is negative, and at the mean size the line goes through the mean time. State: five sums.
"""

from __future__ import annotations

from math import exp2

FADE = exp2(-1.0 / 200.0)
"""A sample weighs half after 200 more."""
RIDGE_TOKENS2 = 50.0**2
"""Sizes that spread by 50 tokens count as much as the prior."""


class Reading:
    """The line, and what it was fitted to."""

    __slots__ = ("_n", "_s", "_t", "_ts", "_tt", "per_token_s", "prior_s", "samples", "start_s")

    def __init__(self, prior_s: float | None = None) -> None:
        self.prior_s = prior_s
        """Announced seconds per token; None: nothing was."""
        self.per_token_s = prior_s or 0.0
        self.start_s = 0.0
        self.samples = 0
        self._n = self._t = self._s = self._ts = self._tt = 0.0

    def add(self, seconds: float, tokens: float) -> None:
        """A prompt of so many tokens was read in so long."""
        self.samples += 1
        self._n = self._n * FADE + 1.0
        self._t = self._t * FADE + tokens
        self._s = self._s * FADE + seconds
        self._ts = self._ts * FADE + tokens * seconds
        self._tt = self._tt * FADE + tokens * tokens
        mean_t, mean_s = self._t / self._n, self._s / self._n
        all_slope = mean_s / mean_t
        prior = all_slope if self.prior_s is None else self.prior_s
        cov, var = self._ts / self._n - mean_t * mean_s, self._tt / self._n - mean_t * mean_t
        slope = (cov + RIDGE_TOKENS2 * prior) / (max(0.0, var) + RIDGE_TOKENS2)
        self.per_token_s = min(max(0.0, slope), all_slope)
        self.start_s = mean_s - self.per_token_s * mean_t

    @property
    def mean_s(self) -> float:
        """How long prompts have taken, whatever their size."""
        return self._s / self._n if self._n else 0.0

    def seconds(self, tokens: float) -> float:
        """How long a prompt of this size should take; 0 while nothing is known."""
        return self.start_s + self.per_token_s * tokens

    def __repr__(self) -> str:
        return f"<Reading {self.start_s * 1000:g} ms and {self.per_token_s * 1000:g} ms a token>"
