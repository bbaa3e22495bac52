"""An upper bound on useful work, by a scheduler that knows every arrival, length and deadline. Regret is against it.

The oracle skips requests that could not be on time on an empty worker. It serves the rest as a fluid, earliest deadline
first, at the capacity measured in the same run; work done before the deadline counts even if the request is not
complete. No schedule on slots does more (Dertouzos 1974). Under steady overload this is capacity times time.

Work is cost: tokens of prompts and answers, weighted by worker time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Asked:
    """One distinct request."""

    arrived_at: float
    deadline: float
    cost: float
    min_s: float
    """Service time on an empty worker."""
    counts: bool


def best_work(asked: Iterable[Asked], cost_per_s: float) -> float:
    """The most cost of counted requests that can be done in time."""
    waiting: list[tuple[float, int, list[float], bool]] = []
    now, done = 0.0, 0.0
    for number, each in enumerate(sorted(asked, key=lambda each: each.arrived_at)):
        done += _serve(waiting, now, each.arrived_at, cost_per_s)
        now = each.arrived_at
        if each.arrived_at + each.min_s <= each.deadline:
            heappush(waiting, (each.deadline, number, [each.cost], each.counts))
    return done + _serve(waiting, now, float("inf"), cost_per_s)


def _serve(waiting: list[tuple[float, int, list[float], bool]], now: float, until: float, cost_per_s: float) -> float:
    """Serve until `until`. Returns the counted cost."""
    done = 0.0
    while waiting and now < until:
        deadline, _, left, counts = waiting[0]
        part = min(left[0], (min(deadline, until) - now) * cost_per_s)
        if part > 0:
            left[0] -= part
            now += part / cost_per_s
            done += part * counts
        if left[0] <= 1e-9 or now >= deadline - 1e-12:
            heappop(waiting)
        elif part <= 0:
            break
    return done
