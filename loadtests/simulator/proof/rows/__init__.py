"""The rows, in order. Numbers are kept where one is left out, so that a row keeps its name."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.simulator.proof.line import Row
from loadtests.simulator.proof.rows import fairness, honesty, isolation, ladder, overload, recovery

ROWS: Sequence[Row] = (*overload.ROWS, *fairness.ROWS, *isolation.ROWS, *recovery.ROWS, *honesty.ROWS, *ladder.ROWS)
"""All but row 8, which is measured in real time: `timing`."""
