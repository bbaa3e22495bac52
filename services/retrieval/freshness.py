"""When a cached result stops being fresh, with two measures against cache stampedes.

- TTL jitter: entries that were stored together would expire together. Each key gets 80 to 100 % of the TTL. The share
  comes from the key's digest, so it never changes.
- Early refresh (XFetch: Vattani, Chierichetti and Lowenstein, "Optimal probabilistic cache stampede prevention", PVLDB
  8(8), 2015): a reader refreshes a fresh entry with probability exp(-left / (beta x cost)), where `left` is the time
  until it expires and `cost` how long the search took. Of many readers one is early, and the others still hit. An entry
  with few readers is rarely refreshed for nothing.
"""

from __future__ import annotations

import math

MIN_TTL_SHARE = 0.8
BETA = 1.0  # above 1 favours earlier refreshes; 1 is the paper's, optimal for equal costs
_STEPS = 0xFFFF


def ttl_jitter(digest: str) -> float:
    """The share of its TTL that the key with this hexadecimal digest gets, in [0.8, 1]."""
    return MIN_TTL_SHARE + (1 - MIN_TTL_SHARE) * int(digest[-4:], 16) / _STEPS


def due_early(remaining_s: float, cost_s: float, draw: float) -> bool:
    """Whether a reader that drew `draw` from (0, 1] should refresh an entry that is fresh for `remaining_s` more."""
    return cost_s > 0 and -BETA * cost_s * math.log(draw) >= remaining_s
