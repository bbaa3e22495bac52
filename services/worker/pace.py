"""Moving averages of step duration and slot time, and the wait they predict for a new request.

With s slots that are each held for r seconds, a queue of q moves up at s/r requests per second (Little's law), so a new
request waits (q + 1) * r / s: an expectation, not a bound.
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
        self.step_s = _moved(self.step_s, duration_s, STEP_WEIGHT)

    def served(self, held_s: float) -> None:
        self.service_s = _moved(self.service_s, held_s, SERVICE_WEIGHT)

    def predicted_wait_s(self, *, waiting: int, slots: int, oldest_s: float) -> float:
        """Seconds that a new request waits while every slot is taken. Before the first answer, `oldest_s`, the age of
        the oldest running sequence, is used for the service time.
        """
        service_s = oldest_s if self.service_s is None else self.service_s
        return (waiting + 1) * service_s / slots

    def __repr__(self) -> str:
        return f"<EnginePace step {_ms(self.step_s)}, service {_ms(self.service_s)}>"


def _moved(average: float | None, sample: float, weight: float) -> float:
    return sample if average is None else average + weight * (sample - average)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.1f} ms"
