"""How fast this worker has been going, and so how long a newcomer would wait.

Two moving averages: the length of a step, and the time a sequence holds its slot. By Little's law a line of q before
s slots that each turn over every r seconds moves up at s/r a second, so its tail waits (q + 1) * r / s. Answers vary
in length, so this is an expectation, not a promise; the router's own estimator makes those.
"""

from __future__ import annotations

STEP_WEIGHT = 0.1
SERVICE_WEIGHT = 0.2


class EnginePace:
    """Averages of step and service time in seconds, each None before its first sample."""

    __slots__ = ("service_s", "step_s")

    def __init__(self) -> None:
        self.step_s: float | None = None
        self.service_s: float | None = None

    def stepped(self, duration_s: float) -> None:
        """A step took this long."""
        self.step_s = _moved(self.step_s, duration_s, STEP_WEIGHT)

    def served(self, held_s: float) -> None:
        """A sequence gave its slot back after this long."""
        self.service_s = _moved(self.service_s, held_s, SERVICE_WEIGHT)

    def predicted_wait_s(self, *, waiting: int, slots: int, oldest_s: float) -> float:
        """What a newcomer at the end of the line would wait while every slot is taken.

        Before the first answer, the age of the oldest running sequence stands in: the least a slot can take.
        """
        service_s = oldest_s if self.service_s is None else self.service_s
        return (waiting + 1) * service_s / slots

    def __repr__(self) -> str:
        return f"<Pace step {_ms(self.step_s)}, service {_ms(self.service_s)}>"


def _moved(average: float | None, sample: float, weight: float) -> float:
    return sample if average is None else average + weight * (sample - average)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.1f} ms"
