"""What goes wrong with a simulated worker on purpose, so that whoever depends on it can be tried.

    slow      every step lasts `slow_factor` times as long         a device that is throttled, or shared
    hang      after so many tokens comes a step without an end     a driver that waits for ever
    die       after so many answers the process ends at once       a segmentation fault, the kernel out of memory
    garbage   so many of the answers hold a line that is no event  a bug, a proxy that writes into the stream
    poison    a prompt that contains the text ends the process     an input that kills whoever reads it

A `FaultPlan` is what shall go wrong: plain data, checked when it is made. `Faults` is what is in force: the plan, how
far it has come, and the means. It decides and the engine obeys, all but for garbage, which is asked for by the HTTP
layer: an engine has no wire to break. The plan can be replaced while the worker runs, and its counts begin anew.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

DEATH_STATUS = 70  # EX_SOFTWARE of sysexits.h: told apart from a kill and from an orderly end
MAX_SLOW_FACTOR = 1000.0
MAX_POISON_CHARS = 1024


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What shall go wrong. Raises ValueError with everything in it that makes no sense."""

    slow_factor: float = 1.0
    hang_after_tokens: int = 0
    """Of all answers together, then again after as many. 0: never."""
    die_after_answers: int = 0
    """The step that follows the last of them kills, so it may not have got through to its reader. 0: never."""
    garbage_share: float = 0.0
    poison: str = ""
    """Empty: no prompt is poison."""

    def __post_init__(self) -> None:
        checks = {
            f"slow_factor must be from 1 to {MAX_SLOW_FACTOR:g}": 1 <= self.slow_factor <= MAX_SLOW_FACTOR,
            "hang_after_tokens must not be negative": self.hang_after_tokens >= 0,
            "die_after_answers must not be negative": self.die_after_answers >= 0,
            "garbage_share must be from 0 to 1": 0 <= self.garbage_share <= 1,
            f"poison must have at most {MAX_POISON_CHARS} characters": len(self.poison) <= MAX_POISON_CHARS,
        }
        wrong = [rule for rule, holds in checks.items() if not holds]
        if wrong:
            raise ValueError("; ".join(wrong))


NO_FAULTS = FaultPlan()


def hard_exit() -> None:
    """End the process now: nothing is flushed, closed or said."""
    os._exit(DEATH_STATUS)


class Faults:
    """The faults in force. `die` is how the process ends; a test gives one that does not."""

    __slots__ = ("_answers", "_chance", "_die", "_tokens", "plan")

    def __init__(
        self, plan: FaultPlan = NO_FAULTS, *, chance: random.Random, die: Callable[[], None] = hard_exit
    ) -> None:
        self.plan = plan
        self._chance = chance
        self._die = die
        self._tokens = 0
        self._answers = 0

    def replace(self, plan: FaultPlan) -> None:
        """From now on this goes wrong, counted from now."""
        self.plan = plan
        self._tokens = self._answers = 0

    def begin_step(self) -> None:
        """A step begins: dies if the answers it was to live for are given."""
        if 0 < self.plan.die_after_answers <= self._answers:
            self._die()

    def prompt_read(self, prompt: str) -> None:
        """An engine has read the whole of a prompt: dies of it if it is poison."""
        if self.plan.poison and self.plan.poison in prompt:
            self._die()

    def lasting_s(self, duration_s: float) -> float:
        """How long a step lasts that should last this long; infinite where it hangs."""
        if 0 < self.plan.hang_after_tokens <= self._tokens:
            self._tokens = 0
            return math.inf
        return duration_s * self.plan.slow_factor

    def end_step(self, *, tokens: int, answers: int) -> None:
        """A step has yielded this many tokens, and ended this many answers."""
        self._tokens += tokens
        self._answers += answers

    def garbage_now(self) -> bool:
        """Whether this answer shall be broken on the wire. Asked once an answer."""
        return self.plan.garbage_share > 0 and self._chance.random() < self.plan.garbage_share

    def __repr__(self) -> str:
        return f"<Faults {self.plan}, {self._tokens} tokens and {self._answers} answers so far>"
