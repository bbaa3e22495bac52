"""How far a search looks: with how much of its usual effort, and how many passages deep.

A router that cuts work asks for less of both. What was found by looking at least as far serves it all the same: its
first passages are what a shallower search finds, and more effort has missed no more of them. So neither is part of
what makes two questions the same; both stand beside a result instead, and a level of degradation finds what another
has kept. A search that had no use for less than all effort is one of all effort, whatever was asked: an exact one that
left nothing out.
"""

from __future__ import annotations

from typing import NamedTuple


class SearchParams(NamedTuple):
    """The share of the usual effort, above 0 and at most 1, and the number of passages that were asked for."""

    effort: float
    depth: int

    def covers(self, asked: SearchParams) -> bool:
        """Whether who asks for that much is served by this."""
        return self.effort >= asked.effort and self.depth >= asked.depth
