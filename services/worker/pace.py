"""The worker's measured speed, and the wait it predicts for a new request.

Two moving averages: step duration and slot time per sequence. With s slots that are each held for r seconds, a queue of
q moves up at s/r requests per second (Little's law), so a new request waits (q + 1) * r / s. This is an expectation,
not a bound; the router has its own estimator.
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
        """The wait of a new request at the end of the queue, in seconds, while every slot is taken.

        Before the first answer, the age of the oldest running sequence is used: the lower bound of its service time.
        """
        service_s = oldest_s if self.service_s is None else self.service_s
        return (waiting + 1) * service_s / slots

    def __repr__(self) -> str:
        return f"<EnginePace step {_ms(self.step_s)}, service {_ms(self.service_s)}>"


def _moved(average: float | None, sample: float, weight: float) -> float:
    return sample if average is None else average + weight * (sample - average)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.1f} ms"
