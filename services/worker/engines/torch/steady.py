"""Adapts the prefill chunk to measured steps, since the cost of prefill grows along a prompt and with the memory in
use.

    share = (time of a step with a full chunk) / (time of steps without prefill, a moving average) - 1
    chunk = chunk * TARGET_SHARE / share        at most halved, at most a quarter more, in one step

A share of 1 doubles a step. TARGET_SHARE is lower so that nearly every step, not only the mean, stays below that.
"""

from __future__ import annotations

from services.worker.engine import Step

TARGET_SHARE = 0.7
MAX_SHRINK, MAX_GROWTH = 0.5, 1.25
MIN_SHARE = 0.01
DECODE_WEIGHT = 0.2


class SteadySteps:
    """The chunk of one engine, between `min_tokens` and `max_tokens`. Raises ValueError for bounds that exclude any
    chunk.
    """

    __slots__ = ("_decode_s", "_tokens", "max_tokens", "min_tokens")

    def __init__(self, decode_s: float, *, tokens: int, min_tokens: int, max_tokens: int) -> None:
        if not 0 < min_tokens <= max_tokens or decode_s <= 0:
            raise ValueError(f"no chunk is between {min_tokens} and {max_tokens} tokens beside steps of {decode_s} s")
        self._decode_s = decode_s
        self._tokens = float(tokens)
        self.min_tokens = min_tokens
        self.max_tokens = max_tokens

    @property
    def tokens(self) -> int:
        """The most prompt tokens of the next step."""
        return int(self._bounded)

    @property
    def _bounded(self) -> float:
        """Not rounded, or it could not grow from 1."""
        return min(max(self._tokens, self.min_tokens), self.max_tokens)

    def took(self, step: Step) -> None:
        """Learn from a step. A step with less than a full chunk is ignored."""
        if step.prefill_tokens == 0:
            self._decode_s += DECODE_WEIGHT * (step.duration_s - self._decode_s)
        elif step.prefill_tokens >= self.tokens:
            share = max(step.duration_s / self._decode_s - 1, MIN_SHARE)
            self._tokens = self._bounded * min(max(TARGET_SHARE / share, MAX_SHRINK), MAX_GROWTH)

    def __repr__(self) -> str:
        return f"<SteadySteps {self.tokens} tokens beside {self._decode_s * 1000:.1f} ms>"
