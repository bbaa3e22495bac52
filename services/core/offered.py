"""The work that is offered to a class, priced at each degradation level when a window of its ladder ends.

Pricing a request at every level when it arrives would be the dearest step of a rejection, and the ladder reads the sums
twice a second. So requests are counted by their sizes, and each size is priced once. Docs: degradation.md.
"""

from __future__ import annotations

from services.core.cost import Lengths, Weights
from services.core.ladder import LadderSizes
from services.core.request import Request

MAX_SIZES = 256
"""Different sizes that are counted before they are priced: a bound of memory, and of the time at a window's end."""


class OfferedWork:
    """Work in token-equivalents by level, since the last call of `take`."""

    __slots__ = ("_by_level", "_fixed_cost", "_prompt_tokens", "_requests", "_sizes")

    def __init__(self, sizes: LadderSizes) -> None:
        self._sizes = sizes
        self._requests: dict[tuple[Lengths, int, int, int], int] = {}  # by what their price depends on, level by level
        self._prompt_tokens = 0  # of all of these: the same at each level
        self._fixed_cost = 0.0  # of requests that are never degraded
        self._by_level = [0.0] * len(sizes.ladder)

    def add(self, cost_tokens: float) -> None:
        """Add a request that is never degraded."""
        self._fixed_cost += cost_tokens

    def add_at_levels(self, request: Request, lengths: Lengths, weights: Weights) -> None:
        """Add a request that may be degraded to `request.max_level`; `lengths` are its tenant's."""
        self._prompt_tokens += request.prompt_tokens
        key = lengths, request.context_tokens, request.max_tokens, request.max_level
        requests = self._requests
        count = requests.get(key, 0)
        requests[key] = count + 1
        if not count and len(requests) >= MAX_SIZES:
            self._price(weights)

    def take(self, weights: Weights) -> list[float]:
        """The work by level, from level 0 on. Starts again at nothing."""
        self._price(weights)
        same = self._fixed_cost + self._prompt_tokens * weights.prompt
        found = [work + same for work in self._by_level]
        self._by_level = [0.0] * len(found)
        self._prompt_tokens, self._fixed_cost = 0, 0.0
        return found

    def _price(self, weights: Weights) -> None:
        by_level, sizes = self._by_level, self._sizes
        for (lengths, context, max_tokens, max_level), count in self._requests.items():
            means = lengths.expected_at(sizes.answers(max_tokens)[: max_level + 1])
            contexts = sizes.contexts(context)
            price = 0.0
            for level in range(len(by_level)):
                if level <= max_level:  # deeper ones cost what the deepest allowed costs
                    price = contexts[level] * weights.prompt + means[level] * weights.completion
                by_level[level] += count * price
        self._requests.clear()
