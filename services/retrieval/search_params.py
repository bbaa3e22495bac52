"""How far a search looks: with which share of the usual effort, and for how many passages.

A degradation level lowers both. A result found with at least as much of both also serves a request that asks for less:
its first passages are those of a shallower search. So both are stored beside a result and are not part of its key. An
exact search that leaves nothing out counts as full effort, whatever was requested.
"""

from __future__ import annotations

from typing import NamedTuple


class SearchParams(NamedTuple):
    """`effort`: share of the usual effort, above 0 and at most 1. `depth`: number of passages."""

    effort: float
    depth: int

    def covers(self, asked: SearchParams) -> bool:
        """Whether a result found with these parameters serves a request for `asked`."""
        return self.effort >= asked.effort and self.depth >= asked.depth
