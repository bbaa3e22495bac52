"""How fast something grows: the straight line that fits its samples best, by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

S_PER_MINUTE = 60.0


def per_minute(points: Sequence[tuple[float, float]]) -> float:
    """The line's rise in a minute, for (seconds, value); 0 where there are too few points to tell."""
    if len(points) < 2:
        return 0.0
    mean_s, mean = fmean(at_s for at_s, _ in points), fmean(value for _, value in points)
    spread = sum((at_s - mean_s) ** 2 for at_s, _ in points)
    if spread == 0:
        return 0.0
    return S_PER_MINUTE * sum((at_s - mean_s) * (value - mean) for at_s, value in points) / spread
