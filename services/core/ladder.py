"""The degradation ladder, smaller answers before rejections: docs/architecture/mechanisms/degradation.md has all rules.

    value[k] = worth[k] * min(1, 1 / load[k])          load[k]: offered work, priced at level k, divided by capacity R

A window of 0.5 s wants the level with the highest value, from the present one on. A rise needs the votes of several
windows, a fall 5 s of calm at a quarter more load. While the work is constant the level changes at most twice, ever.

A window in which most requests found a free slot is quiet: whatever the estimates say, it counts as one without work,
and six of them end a degradation. Waits alone decide nothing: the standing-queue control keeps them short at any load,
and below 0.8 R a long wait is left from a burst. Each level is judged by its own price: priced at level 0, a steady
overload would climb and fall for ever. Yield and harvest are Fox and Brewer's (1999); a controller that dims optional
work is Klein et al.'s (ICSE 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

WINDOW_S = 0.5
DWELL_WINDOWS = 6  # 3 s
CALM_WINDOWS = 10  # 5 s
QUIET_WINDOWS = 6  # 3 s
BUDGET_WINDOWS = 120  # 60 s
LONG_WAIT_SHARE = 0.5  # of the median slack
SPARE = 1.25  # factor on the load at which a calm level must still be the best
GAIN = 1.01  # factor by which a deeper level must be better
VOTES = 11  # windows that count while degraded: 5.5 s
MAX_SIZES = 4096  # entries of the lookup tables
WORTH_IT_LOAD = 1.5  # a third of the requests would be rejected


@dataclass(frozen=True, slots=True)
class LadderLevel:
    """What a request gets at this level, as shares of level 0. Raises ValueError for a share outside 0 to 1."""

    retrieval_depth_share: float
    retrieval_budget_share: float
    context_share: float
    ef_search_share: float
    max_tokens_share: float
    retrieval: bool = True
    worth: float = 1.0
    """Value of an answer at this level, relative to level 0. A judgement; it decides which level is best."""

    def __post_init__(self) -> None:
        for name, share in asdict(self).items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {share}")

    def context_tokens(self, asked: int) -> int:
        """The tokens of retrieved context that are kept."""
        return int(asked * self.context_share) if self.retrieval else 0

    def answer_tokens(self, asked: int) -> int:
        """The limit of the answer: at least one token if any was asked for."""
        return max(int(asked * self.max_tokens_share), min(asked, 1))


# Order of the cuts: search effort, then context, then answer length, then retrieval itself.
LADDER: tuple[LadderLevel, ...] = (
    #     depth budget context ef   answer
    LadderLevel(1.00, 1.00, 1.00, 1.00, 1.00, worth=1.00),
    LadderLevel(0.60, 0.75, 0.60, 0.50, 1.00, worth=0.90),
    LadderLevel(0.40, 0.50, 0.40, 0.50, 0.70, worth=0.80),
    LadderLevel(0.25, 0.40, 0.25, 0.25, 0.45, worth=0.65),
    LadderLevel(0.00, 0.00, 0.00, 0.25, 0.30, worth=0.50, retrieval=False),
)


class LadderSizes:
    """The sizes of a request at each level, cached: most requests use the same few limits and contexts."""

    __slots__ = ("_answers", "_contexts", "ladder")

    def __init__(self, ladder: Sequence[LadderLevel]) -> None:
        self.ladder = ladder
        self._answers: dict[int, tuple[int, ...]] = {}
        self._contexts: dict[int, tuple[int, ...]] = {}

    def answers(self, asked: int) -> tuple[int, ...]:
        """The limit of the answer, level by level; at level 0 what was asked for."""
        known = self._answers.get(asked)
        if known is None:
            known = _kept(self._answers, asked, (asked, *[level.answer_tokens(asked) for level in self.ladder[1:]]))
        return known

    def contexts(self, asked: int) -> tuple[int, ...]:
        """The tokens of context, level by level; at level 0 all."""
        known = self._contexts.get(asked)
        if known is None:
            known = _kept(self._contexts, asked, (asked, *[level.context_tokens(asked) for level in self.ladder[1:]]))
        return known


def _kept(known: dict[int, tuple[int, ...]], asked: int, row: tuple[int, ...]) -> tuple[int, ...]:
    if len(known) >= MAX_SIZES:
        known.clear()
    known[asked] = row
    return row


def fit_clamp(asked: int, slack_s: float, prefill_s: float, s_per_token: float) -> int:
    """The longest answer, up to `asked`, whose last token is in time; 0 if not even one is. All times are seconds.

        min(asked, (slack - prefill) / time per token)

    Pass a high quantile of the time per token: with the median, half of the answers would be late.
    """
    left_s = slack_s - prefill_s
    if not left_s > 0:
        return 0
    if left_s >= asked * s_per_token:
        return max(asked, 0)
    return int(left_s / s_per_token)


class Controller:
    """The level of one class. Call `observe` at every arrival; it decides at most once per window.

    A window without a call counts as one without work. Each class has its own controller, with the capacity that
    heavier classes leave, so the lightest class is degraded first. Raises ValueError for an empty ladder, or a level
    that is worth more than the one before it.
    """

    __slots__ = (
        "_calm",
        "_changed",
        "_quiet",
        "_spent",
        "_wanted",
        "_window",
        "_worth",
        "changes",
        "level",
        "window_ends",
    )

    def __init__(self, ladder: Sequence[LadderLevel] = LADDER) -> None:
        if not ladder:
            raise ValueError("a ladder has at least one level")
        self._worth = [level.worth for level in ladder]
        if any(better < worse for better, worse in pairwise(self._worth)):
            raise ValueError(f"no level may be worth more than the one before, got {self._worth}")
        self.level = 0
        self.changes = 0
        self._calm = [0] * len(ladder)  # consecutive windows in which this level was good enough
        self._wanted = [0] * VOTES  # levels that the last windows wanted
        self.window_ends = -math.inf  # until the first call
        self._quiet = 0  # consecutive windows in which most requests found a free slot
        self._window = 0  # windows closed so far: the clock of all below, without rounding errors
        self._changed = -DWELL_WINDOWS
        self._spent = (-BUDGET_WINDOWS, -BUDGET_WINDOWS)  # windows of the last two changes that the budget paid for

    @property
    def top(self) -> int:
        return len(self._calm) - 1

    def due(self, now: float) -> bool:
        """Whether `observe` would use its arguments. Saves computing them otherwise."""
        return now >= self.window_ends

    def observe(
        self,
        now: float,
        *,
        q95_wait_s: float | None,
        median_slack_s: float | None,
        offered_work_per_s: Sequence[float],
        rate: float | None,
        quiet: bool = False,
    ) -> int:
        """The level from now on.

        `offered_work_per_s` is all offered work, served or not, priced at each level; best a mean over the last
        second. `rate` is the capacity in the same unit, None or 0 while unknown. The waits are those of recent starts,
        the slacks those of recent arrivals; None without samples. `quiet`: most requests of this window found a free
        slot, so whatever the estimates say there was no overload. Raises ValueError if the number of prices is not that
        of the levels.
        """
        if not self.due(now):
            return self.level
        if len(offered_work_per_s) != len(self._calm):
            raise ValueError(f"work was priced at {len(offered_work_per_s)} levels, the ladder has {len(self._calm)}")
        self._pass_silence(now)
        loads = [0.0] * len(self._calm) if quiet else _loads(offered_work_per_s, rate)
        self._quiet = self._quiet + 1 if quiet else 0
        if self.level and self._quiet >= QUIET_WINDOWS:
            self._window += 1
            self._change(0, free=True)
        elif loads is None:
            self._hold()
        else:
            self._close(loads, _long(q95_wait_s, median_slack_s))
        return self.level

    def _pass_silence(self, now: float) -> None:
        """Close the windows without a call, except the one that this call is for."""
        if self.window_ends == -math.inf:
            self.window_ends = now
        silent = int((now - self.window_ends) / WINDOW_S)
        self.window_ends += (silent + 1) * WINDOW_S
        while silent and self.level:
            self._close([0.0] * len(self._calm), long_waits=False)
            silent -= 1
        if silent:
            self._window += silent
            self._wanted = [0] * VOTES

    def _hold(self) -> None:
        """Close a window that gives no information."""
        self._window += 1
        self._vote(self.level)
        self._calm = [0] * len(self._calm)

    def _close(self, loads: list[float], long_waits: bool) -> None:
        """Close a window, and change the level if the rules allow it."""
        self._window += 1
        values, with_spare = self._values(loads), self._values([load * SPARE for load in loads])
        budget_spent = self._window - self._spent[0] < BUDGET_WINDOWS
        keep = budget_spent and loads[self.level] <= WORTH_IT_LOAD
        self._vote(self.level if keep else self._best(with_spare if long_waits else values))
        self._count_calm(with_spare)
        if self._window - self._changed < DWELL_WINDOWS:
            return
        wanted, full_price_fits = self._elected(), self._calm[0] >= CALM_WINDOWS
        if wanted > self.level:
            self._change(wanted, free=False)
        elif self.level and self._calm[self.level - 1] >= CALM_WINDOWS and (full_price_fits or not budget_spent):
            self._change(self.level - 1, free=full_price_fits)

    def _values(self, loads: list[float]) -> list[float]:
        return [worth / max(load, 1.0) for worth, load in zip(self._worth, loads, strict=True)]

    def _best(self, values: list[float]) -> int:
        """The level of the highest value, from the present one on; a deeper one only if it is better by `GAIN`."""
        best = self.level
        for level in range(self.level + 1, len(values)):
            if values[level] > values[best] * GAIN:
                best = level
        return best

    def _count_calm(self, values: list[float]) -> None:
        """Count calm windows: a level is calm while no deeper one has a higher value."""
        best = 0.0
        for level in range(len(values) - 1, -1, -1):
            best = max(best, values[level])
            self._calm[level] = self._calm[level] + 1 if values[level] == best else 0

    def _vote(self, level: int) -> None:
        del self._wanted[0]
        self._wanted.append(level)

    def _elected(self) -> int:
        """The level that the last windows agree on."""
        if self.level:
            return sorted(self._wanted)[VOTES // 2]
        agree = sum(wanted > 0 for wanted in self._wanted[-3:]) >= 2
        return self._wanted[-1] if agree else 0

    def _change(self, level: int, *, free: bool) -> None:
        assert 0 <= level <= self.top, f"level {level} is not on the ladder: {self!r}"
        self.level = level
        self.changes += 1
        self._changed = self._window
        self._wanted = [level] * VOTES
        if not free:
            self._spent = (self._spent[1], self._window)

    def __repr__(self) -> str:
        calm = "/".join(map(str, self._calm))
        return f"<Controller level {self.level} of {self.top}, {self.changes} changes, calm for {calm} windows>"


def _loads(work_per_s: Sequence[float], rate: float | None) -> list[float] | None:
    """Offered work divided by capacity, per level: 0 without work, whatever the rate. None: unknown."""
    if rate is not None and rate > 0:
        return [work / rate for work in work_per_s]
    return None if any(work_per_s) else [0.0] * len(work_per_s)


def _long(q95_wait_s: float | None, median_slack_s: float | None) -> bool:
    """Whether waits use more than their share of the slack. Without slack, any wait does."""
    if q95_wait_s is None or median_slack_s is None:
        return False
    return q95_wait_s > LONG_WAIT_SHARE * max(median_slack_s, 0.0)
