"""One ranking out of two: by reciprocal rank (Cormack, Clarke and Buettcher 2009).

A distance and a count of words have no scale in common, and their ranks have. An item counts 1 / (K + rank) for each
ranking that it is in: whoever is far up in one is up, and whoever is in both is further up. K keeps the first place of
one ranking from outweighing everything: 60 is the authors' figure, and bench/hybrid has it measured here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

K = 60

Item = TypeVar("Item", bound=Hashable)


def fuse(*rankings: Sequence[Item], k: float = K) -> list[Item]:
    """Every item of these rankings, once, best first. Equals stand in the order of the first ranking they are in."""
    scores: dict[Item, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (k + rank)
    return sorted(scores, key=lambda item: -scores[item])
