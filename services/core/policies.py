"""Switches for three mechanisms, all on by default, to measure the effect of each (decision 040).

    admission      off: no deadline test at admission, in the queue or at the start; no degradation, no cut, no limit on
                   standing queues (`BoundedAdmission`). The platform's bounds hold; one tenant may fill the queue.
    fairness       off: one queue for all tenants, in order of arrival (`FifoDiscipline`), with one bound. Tenants,
                   classes and weights do not count.
    cancellation   off: work goes on after a disconnect or a deadline, in the queue and at the worker, and the answer is
                   sent. The core knows no clients: the caller implements this.

With all three off the scheduler is a bounded queue, first in, first out.
"""

from __future__ import annotations

from dataclasses import dataclass

MECHANISMS = ("admission", "fairness", "cancellation")
ALL_ON, ALL_OFF = "weir", "fifo"
BY_NAME = {f"no-{name}": name for name in MECHANISMS}


@dataclass(frozen=True, slots=True)
class Policies:
    """For each mechanism, whether it is on."""

    admission: bool = True
    fairness: bool = True
    cancellation: bool = True

    @classmethod
    def named(cls, text: str) -> Policies:
        """Parse names with commas between: `weir`, `fifo`, `no-admission`, ... Raises ValueError for other names."""
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
        """Whether each tenant has bounds of its own, beside the platform's."""
        return self.admission and self.fairness

    def __str__(self) -> str:
        off = self.off
        if not off or len(off) == len(MECHANISMS):
            return ALL_OFF if off else ALL_ON
        return ",".join(f"no-{name}" for name in off)
