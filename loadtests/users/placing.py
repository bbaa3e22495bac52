"""Which users start and stop next. Apart from `shapes`, since Locust cannot be imported beside the tests."""

from __future__ import annotations


def nearer(counts: dict[str, int], wanted: dict[str, int], starts: int) -> dict[str, int]:
    """So many users started, always of the class that lacks most; those who are too many all stop at once."""
    counts = {name: min(count, wanted[name]) for name, count in counts.items()}
    for _ in range(starts):
        name = max(counts, key=lambda name: wanted[name] - counts[name])
        if counts[name] == wanted[name]:
            break
        counts[name] += 1
    return counts
