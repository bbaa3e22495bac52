"""One row of the table: what the worker does and what its client may see."""

from __future__ import annotations

from typing import NamedTuple

from loadtests.faults.evil.worker import Trick
from loadtests.judging.answers import Verdict

RIGHT, REFUSED, CUT = Verdict.RIGHT, Verdict.REFUSED, Verdict.CUT
WEIR, OPENAI = ("weir",), ("openai",)
BOTH = WEIR + OPENAI


class Row(NamedTuple):
    """`streamed`, `whole`: the client's verdict, with one honest worker beside this one.

    `RIGHT` means that nothing had been sent and the one retry was right, or that the worker's own answer was right
    despite the trick. `slow`: only a deadline ends it.
    """

    name: str
    act: Trick
    streamed: Verdict = RIGHT
    whole: Verdict = RIGHT
    kinds: tuple[str, ...] = BOTH
    slow: bool = False
