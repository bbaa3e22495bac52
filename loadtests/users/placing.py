"""Which users start and stop next. Separate from `shapes`, because tests cannot import Locust."""

from __future__ import annotations


def nearer(counts: dict[str, int], wanted: dict[str, int], starts: int) -> dict[str, int]:
    """Start up to `starts` users, always of the class that lacks most; surplus users stop at once."""
    counts = {name: min(count, wanted[name]) for name, count in counts.items()}
    for _ in range(starts):
        name = max(counts, key=lambda name: wanted[name] - counts[name])
        if counts[name] == wanted[name]:
            break
        counts[name] += 1
    return counts
