"""When a cached result stops being fresh: not all at once, and for a popular one a little before its time.

Two ways in which a cache fails its store at the worst moment, and what is done about each:

- What was stored together expires together, and is searched for together. So every key gets its own share of the time
  to live, from 80 to 100 %, read off its digest: a time to live stays an upper bound, and a key's share never changes.
- A popular entry expires, and everyone misses at once. So a reader may find it due a little early, and refresh it while
  everyone else still has it: with probability exp(-left / (beta x cost)), `left` being the time until it expires and
  `cost` the time a search took. (XFetch, after Vattani, Chierichetti and Lowenstein, "Optimal probabilistic cache
  stampede prevention", PVLDB 8(8), 2015: refresh when -beta x cost x ln(u) >= left, u uniform in (0, 1].) The more
  readers, the surer that one of them is early; an entry that few read is hardly ever refreshed for nothing.
"""

from __future__ import annotations

import math

MIN_TTL_SHARE = 0.8
BETA = 1.0  # above 1 favours earlier refreshes; 1 is the paper's, optimal for equal costs
_STEPS = 0xFFFF


def ttl_jitter(digest: str) -> float:
    """How much of its time to live the key with this hexadecimal digest gets, in [0.8, 1]."""
    return MIN_TTL_SHARE + (1 - MIN_TTL_SHARE) * int(digest[-4:], 16) / _STEPS


def due_early(remaining_s: float, cost_s: float, draw: float) -> bool:
    """Whether a reader that drew `draw` from (0, 1] should refresh what is fresh for `remaining_s` more."""
    return cost_s > 0 and -BETA * cost_s * math.log(draw) >= remaining_s
