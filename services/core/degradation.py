"""The degradation level at which each class of requests begins: by its load, or as an operator holds it.

The controllers (`ladder.py`) look at the load of their classes every 0.5 s; this module feeds them. A level that an
operator holds replaces only the controller's, which runs on. No request is cut deeper than its tenant allows, and one
that would be rejected is still tried at deeper levels.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from services.core.cost import Weights
from services.core.stats import ClassStats, PoolStats

if TYPE_CHECKING:
    from services.core.admissioncheck import AdmissionCheck

SLACK_EVERY = 8
"""One in this many slacks at admission is a sample for the ladder."""


class Degradation:
    """The levels of all classes. A held level counts in every pool."""

    __slots__ = ("_held", "levels")

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self._held: dict[str, int] = {}

    def hold(self, classes: Iterable[str], level: int | None) -> None:
        """Hold these classes at this level; None: back to their load. Raises ValueError for an unknown level."""
        if level is not None and not 0 <= level < self.levels:
            raise ValueError(f"levels are 0 to {self.levels - 1}, got {level}")
        for name in classes:
            self._held.pop(name, None)
            if level is not None:
                self._held[name] = level

    def keep(self, classes: Container[str]) -> None:
        """Forget the held levels of all other classes."""
        self._held = {name: level for name, level in self._held.items() if name in classes}

    def held(self, class_name: str) -> int | None:
        """The level that an operator holds the class at; None: by its load."""
        return self._held.get(class_name)

    def level(self, class_stats: ClassStats, name: str) -> int:
        """The level at which requests of this class begin."""
        return self._held.get(name, class_stats.controller.level)

    def start_level(self, check: AdmissionCheck) -> int:
        """The level at which the request begins, as far as its tenant allows. Its price counts in its class's load."""
        if not check.settings.degrade:
            return 0
        request, now, class_stats = check.request, check.now, check.tenant_stats.class_stats
        if request.max_level:
            class_stats.offered.add_at_levels(request, check.tenant_stats.lengths, check.settings.weights)
        else:
            class_stats.offered.add(check.cost_tokens)
        class_stats.offers = offers = class_stats.offers + 1
        if not offers % SLACK_EVERY:
            class_stats.slacks_s.add(request.due_at - now)
        controller = class_stats.controller
        if now >= controller.window_ends:  # `due`, without a call for each request
            _update_controllers(now, check.pool_stats, check.settings.weights)
        if check.free:
            level = 0
        else:
            class_stats.crowded += 1
            level = controller.level
        if self._held:
            level = self._held.get(check.flow.node.name, level)
        return min(level, request.max_level) if level else 0


def _update_controllers(now: float, pool_stats: PoolStats, weights: Weights) -> None:
    """Update the controllers, heaviest class first: its capacity is what heavier ones leave, at least its share."""
    rate = pool_stats.estimator.rate
    all_weights = sum((class_stats.weight for class_stats in pool_stats.classes.values()), 0.0)
    left = rate or 0.0
    for class_stats in sorted(pool_stats.classes.values(), key=lambda class_stats: -class_stats.weight):
        quiet, offered = class_stats.is_quiet(), class_stats.offered_per_s(now, weights)
        level = class_stats.controller.observe(
            now,
            q95_wait_s=class_stats.long_wait_s(),
            quiet=quiet,
            median_slack_s=class_stats.slacks_s.quantile(0.5),
            offered_work_per_s=offered,
            rate=max(left, (rate or 0.0) * class_stats.weight / all_weights),
        )
        left -= offered[level]
