"""What could have been served by one who knew everything: an upper bound, to measure regret against.

The oracle knows every arrival, length and deadline. It leaves out what could not be on time on an empty worker. The
rest it serves as a fluid, at the capacity that was measured in the same run, earliest deadline first; what it has
done of a request by the deadline counts, even where that is a part. A fluid can be cut and handed over at no cost, so
no schedule on slots can have more (earliest deadline first leaves the least undone: Dertouzos 1974). Under steady
overload this is capacity times time.

Work is cost: tokens of prompts and answers, weighted by the worker time that they take.
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
    least_s: float
    """How long it takes on an empty worker."""
    counts: bool


def best_work(asked: Iterable[Asked], cost_per_s: float) -> float:
    """The most work that counts and could be on time."""
    waiting: list[tuple[float, int, list[float], bool]] = []
    now, done = 0.0, 0.0
    for number, each in enumerate(sorted(asked, key=lambda each: each.arrived_at)):
        done += _serve(waiting, now, each.arrived_at, cost_per_s)
        now = each.arrived_at
        if each.arrived_at + each.least_s <= each.deadline:
            heappush(waiting, (each.deadline, number, [each.cost], each.counts))
    return done + _serve(waiting, now, float("inf"), cost_per_s)


def _serve(waiting: list[tuple[float, int, list[float], bool]], now: float, until: float, cost_per_s: float) -> float:
    """Work until then; what counts of it."""
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
