"""Injected faults of a simulated worker.

    slow      every step lasts `slow_factor` times as long         a throttled or shared device
    hang      the step after so many tokens never ends             a driver that blocks
    die       the process exits after so many answers              a segmentation fault, the OOM killer
    garbage   a share of the answers ends in a line that is no     a bug, a proxy that writes into the stream
              event (applied by the HTTP layer)
    poison    a prompt that contains the text ends the process     an input that crashes the engine

`FaultPlan` is the configuration, `Faults` the state in force. Replacing the plan resets the counts.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

DEATH_STATUS = 70  # EX_SOFTWARE of sysexits.h: neither a kill nor a regular exit
MAX_SLOW_FACTOR = 1000.0
MAX_POISON_CHARS = 1024


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults to inject. Raises ValueError with every field that is out of range."""

    slow_factor: float = 1.0
    hang_after_tokens: int = 0
    """Counted over all answers, and repeated after as many more. 0: never."""
    die_after_answers: int = 0
    """The next step exits, so the last answer may not reach its reader. 0: never."""
    garbage_share: float = 0.0
    poison: str = ""
    """Empty: disabled."""

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
    """Exit at once, without flushing or closing anything."""
    os._exit(DEATH_STATUS)


class Faults:
    """The faults in force. `die` ends the process; tests pass a function that does not."""

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
        """Replace the plan and reset the counts."""
        self.plan = plan
        self._tokens = self._answers = 0

    def begin_step(self) -> None:
        """Exit if as many answers as configured have ended."""
        if 0 < self.plan.die_after_answers <= self._answers:
            self._die()

    def prompt_read(self, prompt: str) -> None:
        """A prompt was prefilled: exit if it is poison."""
        if self.plan.poison and self.plan.poison in prompt:
            self._die()

    def lasting_s(self, duration_s: float) -> float:
        """The duration of a step that would take `duration_s`; infinite if it hangs."""
        if 0 < self.plan.hang_after_tokens <= self._tokens:
            self._tokens = 0
            return math.inf
        return duration_s * self.plan.slow_factor

    def end_step(self, *, tokens: int, answers: int) -> None:
        self._tokens += tokens
        self._answers += answers

    def garbage_now(self) -> bool:
        """Whether to break this answer on the wire. Called once per answer."""
        return self.plan.garbage_share > 0 and self._chance.random() < self.plan.garbage_share

    def __repr__(self) -> str:
        return f"<Faults {self.plan}, {self._tokens} tokens and {self._answers} answers so far>"
