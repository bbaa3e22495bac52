"""Which of the three mechanisms are on. All are, unless an operator wants to see what one of them is worth.

    admission      off: no request is judged by its deadline, at the door, in the queue or at the start; no answer is
                   degraded or cut; no queue is kept short (`BoundedAdmission`). The platform's bounds hold, and one
                   tenant may fill the queue.
    fairness       off: one queue for all tenants, in the order of arrival (`FifoDiscipline`), with one bound. Neither
                   tenants nor classes nor weights count.
    cancellation   off: work goes on for a client that has left or whose deadline has passed, in the queue and at its
                   worker. The client gets its answer all the same. The core has no clients: its caller acts on this.

With all three off it is a bounded queue, first in, first out: what stands before most servers.
"""

from __future__ import annotations

from dataclasses import dataclass

MECHANISMS = ("admission", "fairness", "cancellation")
ALL_ON, ALL_OFF = "weir", "fifo"
BY_NAME = {f"no-{name}": name for name in MECHANISMS}


@dataclass(frozen=True, slots=True)
class Policies:
    """The mechanisms by name, and whether each is on."""

    admission: bool = True
    fairness: bool = True
    cancellation: bool = True

    @classmethod
    def named(cls, text: str) -> Policies:
        """By words with commas between: `weir`, `fifo`, `no-admission`, ... Raises ValueError naming what is wrong."""
        words = [word.strip() for word in text.split(",")]
        if words in ([ALL_ON], [ALL_OFF]):
            return cls(**dict.fromkeys(MECHANISMS, words == [ALL_ON]))
        if wrong := [word for word in words if word not in BY_NAME]:
            raise ValueError(f"{wrong[0]!r} is no policy: {ALL_ON}, {ALL_OFF}, or some of {', '.join(BY_NAME)}")
        return cls(**{BY_NAME[word]: False for word in words})

    @property
    def off(self) -> list[str]:
        """The names of the mechanisms that are off."""
        return [name for name in MECHANISMS if not getattr(self, name)]

    @property
    def own_bounds(self) -> bool:
        """Whether each tenant has bounds of its own in line, beside those of the platform."""
        return self.admission and self.fairness

    def __str__(self) -> str:
        off = self.off
        if not off or len(off) == len(MECHANISMS):
            return ALL_OFF if off else ALL_ON
        return ",".join(f"no-{name}" for name in off)
