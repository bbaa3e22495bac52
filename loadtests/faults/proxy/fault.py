"""The fault of a proxy as a value, and as a line for the control port.

    healthy                     forward everything at once
    latency 200 jitter 50       delay each piece by 150 to 250 ms per direction; a round trip has both
    rate 10000                  limit each connection and direction to this many bytes a second
    cut 100                     close each connection after this many more bytes of answer
    freeze                      accept, and hold both directions, like a stopped server
    reset                       reset every connection, new ones included
    refuse                      reset every connection and stop listening, like a server that is down

The keywords `latency`, `jitter`, `rate` and `cut` may share a line. A line replaces the whole fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Mode(StrEnum):
    PASS = "pass"
    FREEZE = "freeze"
    RESET = "reset"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Fault:
    """The current fault; the default is healthy."""

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
    """Parse a line. Raises `ValueError` with the reason."""
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
