"""One line of the table: what the worker does, and what its client may see of it."""

from __future__ import annotations

from typing import NamedTuple

from loadtests.faults.evil.worker import Trick
from loadtests.judging.answers import Verdict

RIGHT, REFUSED, CUT = Verdict.RIGHT, Verdict.REFUSED, Verdict.CUT
WEIR, OPENAI = ("weir",), ("openai",)
BOTH = WEIR + OPENAI


class Row(NamedTuple):
    """`streamed`, `whole`: the verdict on what the client gets, with one honest worker beside this one.

    `RIGHT` then means: nothing had been told, and the one retry brought the right answer; or the worker's own answer
    was right in spite of the trick. `slow`: it is over only by a deadline.
    """

    name: str
    act: Trick
    streamed: Verdict = RIGHT
    whole: Verdict = RIGHT
    kinds: tuple[str, ...] = BOTH
    slow: bool = False
