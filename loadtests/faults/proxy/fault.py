"""What a proxy does to its connections, as a value; and the same in words, for the control port.

    healthy                     pass everything on at once
    latency 200 jitter 50       each piece arrives 150 to 250 ms later, either way; a round trip has both
    rate 10000                  at most so many bytes a second, on each connection and each way
    cut 100                     close each connection after so many more bytes of answer
    freeze                      accept, and hold everything, both ways: a server that was stopped
    reset                       end every connection, new ones included, with a reset
    refuse                      end every connection and do not listen: a server that is gone

The first three kinds go together on one line. A line is the whole of what then holds: nothing of the last one stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Mode(StrEnum):
    """What becomes of a connection."""

    PASS = "pass"
    FREEZE = "freeze"
    RESET = "reset"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Fault:
    """All that holds at a time; the default is a healthy wire."""

    mode: Mode = Mode.PASS
    latency_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_s: float | None = None
    cut_after_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.jitter_s <= self.latency_s <= 60:
            raise ValueError("latency is at most 60 s, and jitter at most latency")
        if self.rate_bytes_s is not None and not self.rate_bytes_s >= 1:
            raise ValueError("rate is at least 1 byte/s")
        if self.cut_after_bytes is not None and self.cut_after_bytes < 0:
            raise ValueError("a cut comes after 0 bytes or more")


HEALTHY = Fault()
FREEZE = Fault(Mode.FREEZE)
RESET = Fault(Mode.RESET)
REFUSE = Fault(Mode.REFUSE)

MODES: Mapping[str, Fault] = {"healthy": HEALTHY, "freeze": FREEZE, "reset": RESET, "refuse": REFUSE}
AMOUNTS: Mapping[str, Callable[[Fault, str], Fault]] = {
    "latency": lambda fault, word: replace(fault, latency_s=float(word) / 1000),
    "jitter": lambda fault, word: replace(fault, jitter_s=float(word) / 1000),
    "rate": lambda fault, word: replace(fault, rate_bytes_s=float(word)),
    "cut": lambda fault, word: replace(fault, cut_after_bytes=int(word)),
}


def read(line: str) -> Fault:
    """The fault that this line asks for. Raises `ValueError` with what is wrong with it."""
    words = line.split()
    if len(words) == 1 and words[0] in MODES:
        return MODES[words[0]]
    if not words or len(words) % 2:
        raise ValueError(f"one of {', '.join(MODES)}; or pairs of {', '.join(AMOUNTS)} with a number")
    fault = HEALTHY
    for name, amount in zip(words[::2], words[1::2], strict=True):
        if name not in AMOUNTS:
            raise ValueError(f"unknown: {name[:40]}")
        fault = AMOUNTS[name](fault, amount)
    return fault
