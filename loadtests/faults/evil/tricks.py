"""The table of all tricks and what a client may see of them."""

from __future__ import annotations

from loadtests.faults.evil.cuts import CUTS
from loadtests.faults.evil.events import EVENTS
from loadtests.faults.evil.framing import FRAMING
from loadtests.faults.evil.silence import SILENCE
from loadtests.faults.evil.sse import SSE

ROWS = CUTS + FRAMING + SILENCE + EVENTS + SSE


def named(*, kind: str, slow: bool) -> tuple[str, ...]:
    """The names of the tricks of one kind of worker, with or without the slow ones."""
    return tuple(row.name for row in ROWS if kind in row.kinds and (slow or not row.slow))
