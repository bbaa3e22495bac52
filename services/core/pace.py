"""The speed of a worker regardless of the answer's size: the input of its learned limit.

docs/architecture/mechanisms/limits.md explains the choice; tests/router/workers/test_pace.py shows that a limit on the
time per token grows without end.

    pace = seconds from dispatch to end / units,      units = overhead + prompt_tokens * reading + completion_tokens

`overhead` and `reading` are prices in completion tokens, learned while the limit is at its minimum, where an answer
runs alone. Least squares on relative errors, with forgetting:

    seconds ~ a + b * prompt_tokens + c * completion_tokens      overhead = a / c, reading = b / c, neither below 0

A first guess of small weight holds the fit where samples leave it open (prompts of one length say nothing about
reading). Under load the prices are frozen: learned there, a queue would count as overhead, and congestion as normal. An
answer without counts has no pace, nor has a failed one. O(1); nothing at all for workers with announced slots.
"""

from __future__ import annotations

from math import exp2

HALF_LIFE = 64.0
"""Samples after which one weighs half."""
FIRST_READING = 0.005
"""Typical for a server that batches: 200 prompt tokens take the time of one completion token."""
FIRST_OVERHEAD = 1.0
ENOUGH = 6
HOLD = 0.03
"""Weight of the first guess, a sample having 1: answers vary by 10 to 20 %, a guess may be wrong by 100 %."""
MIN_SHARE = 1e-3
"""A fitted time per token below this share of the guessed one is rejected."""

Row = tuple[float, float, float]


class Pace:
    """The prices of one worker, and paces by them."""

    __slots__ = ("_samples", "_sums", "_weight", "overhead_tokens", "reading")

    def __init__(self) -> None:
        self.overhead_tokens = FIRST_OVERHEAD
        self.reading = FIRST_READING
        self._samples = 0
        self._weight = 0.0
        self._sums = _zeros()

    def of(self, seconds: float, prompt_tokens: float, completion_tokens: float, *, alone: bool) -> float | None:
        """The pace of one answer, None without counts. `alone`: nothing else ran, so learn the prices from it."""
        if not (seconds > 0 and completion_tokens > 0 and prompt_tokens >= 0):
            return None
        if alone:
            self._learn(seconds, prompt_tokens, completion_tokens)
        return seconds / (self.overhead_tokens + self.reading * prompt_tokens + completion_tokens)

    def _learn(self, seconds: float, prompt_tokens: float, completion_tokens: float) -> None:
        fade = exp2(-1.0 / HALF_LIFE)
        self._sums = [[fade * value for value in row] for row in self._sums]
        self._weight = fade * self._weight + 1.0
        self._samples += 1
        # Divided by its own time, so that each sample's error is relative.
        _add(self._sums, (1.0 / seconds, prompt_tokens / seconds, completion_tokens / seconds), 1.0)
        if self._samples >= ENOUGH:
            self._fit()

    def _fit(self) -> None:
        requests_per_s, prompt_per_s, written_per_s = (self._column(i) for i in range(3))
        prompt, written = prompt_per_s / requests_per_s, written_per_s / requests_per_s
        guess_s = 1.0 / (FIRST_OVERHEAD * requests_per_s + FIRST_READING * prompt_per_s + written_per_s)
        sums = [list(row) for row in self._sums]
        for i, (size, price) in enumerate(((1.0, FIRST_OVERHEAD), (max(prompt, 1.0), FIRST_READING), (written, 1.0))):
            row = [0.0, 0.0, 0.0]
            row[i] = size * requests_per_s  # relative, as the samples are
            _add(sums, (row[0], row[1], row[2]), row[i] * price * guess_s, HOLD)
        overhead_s, reading_s, writing_s = _solved(sums)
        if writing_s > MIN_SHARE * guess_s:
            self.overhead_tokens = max(0.0, overhead_s) / writing_s
            self.reading = max(0.0, reading_s) / writing_s

    def _column(self, i: int) -> float:
        return self._sums[i][3] / self._weight

    def __repr__(self) -> str:
        return f"<Pace {self.overhead_tokens:.3g} tokens before a prompt, {self.reading:.3g} for each of its tokens>"


def _zeros() -> list[list[float]]:
    """Sums over samples of row * row, and in the last column of row * target: the normal equations."""
    return [[0.0] * 4 for _ in range(3)]


def _add(sums: list[list[float]], row: Row, target: float, weight: float = 1.0) -> None:
    for i in range(3):
        for j in range(3):
            sums[i][j] += weight * row[i] * row[j]
        sums[i][3] += weight * row[i] * target


def _solved(sums: list[list[float]]) -> list[float]:
    """Gaussian elimination with pivots; the guess keeps the system regular."""
    rows = [list(row) for row in sums]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, 3):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [below - factor * above for below, above in zip(rows[k], rows[i], strict=True)]
    found = [0.0, 0.0, 0.0]
    for i in (2, 1, 0):
        known = sum(rows[i][j] * found[j] for j in range(i + 1, 3))
        found[i] = (rows[i][3] - known) / rows[i][i]
    return found
