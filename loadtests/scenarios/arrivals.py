"""When a tenant's clients ask: at a rate of their own, as a trace recorded it, or once they were answered.

Open arrivals wait for no answer: an overloaded server gets no relief from being slow, as in the world. A closed loop
slows down with its server, which is why load tests that use one see no collapse (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from loadtests.load.traces import Part, TraceFormat, read
from loadtests.scenarios.distributions import Distribution, Model, constant

Seconds = Annotated[float, Field(ge=0, le=1e6)]
PositiveSeconds = Annotated[float, Field(gt=0, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
Load = Annotated[float, Field(gt=0, le=1000)]


class Span(Model):
    """From one second of the run to another."""

    from_s: Seconds
    until_s: PositiveSeconds

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.until_s <= self.from_s:
            raise ValueError(f"until_s ({self.until_s:g}) must be after from_s ({self.from_s:g})")
        return self


def in_order(spans: Sequence[Span]) -> None:
    """Raises ValueError where one begins before the one before it ends."""
    for before, after in pairwise(spans):
        if after.from_s < before.until_s:
            raise ValueError(f"the phase from {after.from_s:g} s begins before the one before it ends")


class Phase(Span):
    """The rate is so many times the usual."""

    times: float = Field(ge=0, le=10_000)


class Open(Model):
    """Arrivals that wait for no answer, at a rate: a multiple of capacity, or requests per second."""

    load: Load | None = None
    rate_per_s: Rate | None = None
    phases: tuple[Phase, ...] = Field((), max_length=1000)

    @property
    def moments(self) -> list[float]:
        """The seconds at which the rate changes, and the beginning."""
        return sorted({0.0, *(second for phase in self.phases for second in (phase.from_s, phase.until_s))})

    def times_at(self, second: float) -> float:
        """How many times the usual rate there is at this second."""
        return next((phase.times for phase in self.phases if phase.from_s <= second < phase.until_s), 1.0)

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.load is None) == (self.rate_per_s is None):
            raise ValueError("needs either load or rate_per_s")
        return self

    @model_validator(mode="after")
    def _phases_are_in_order(self) -> Self:
        in_order(self.phases)
        return self


class Poisson(Open):
    """Independent arrivals."""

    kind: Literal["poisson"]


class Gamma(Open):
    """Gaps with a coefficient of variation: above 1 they come in bursts, below 1 they are regular."""

    kind: Literal["gamma"]
    cv: float = Field(gt=0.01, le=50)


class OnOff(Open):
    """Poisson while on, nothing while off; the rate is the mean over both. On first, all of the group together."""

    kind: Literal["on_off"]
    on_s: PositiveSeconds
    off_s: PositiveSeconds


class Trace(Model):
    """Replay: times and lengths from a file. At a load, or `time_scale` times as fast as recorded."""

    kind: Literal["trace"]
    path: Path
    format: TraceFormat | None = None
    """Told by its columns if it is left out."""
    time_scale: float | None = Field(None, gt=0, le=1e6)
    load: Load | None = None
    token_scale: float = Field(1.0, gt=0, le=1000)
    by_client: bool = False
    """Each client of the trace is a tenant of its own, `name-client`; else all are one."""
    start_s: float = Field(0.0, ge=0, le=1e9)
    length_s: float | None = Field(None, gt=0, le=1e9)
    """From here on so much of it; all of it by default."""
    repeat: bool = True
    """Begin again where that ends; else it falls silent."""

    def part(self) -> Part:
        """What is replayed. LabError says what is wrong with the file."""
        return read(self.path, self.format, self.start_s, inf if self.length_s is None else self.length_s)

    @model_validator(mode="after")
    def _one_speed(self) -> Self:
        if self.load is not None and self.time_scale is not None:
            raise ValueError("takes load or time_scale, not both")
        return self

    @field_validator("path")
    @classmethod
    def _is_there(cls, path: Path, info: ValidationInfo) -> Path:
        folder = (info.context or {}).get("folder")
        for place in (path, folder / path if folder else path):
            if place.is_file():
                return place
        raise ValueError(f"there is no file {path}")


class Crowd(Span):
    """There are so many clients instead of the usual number."""

    clients: int = Field(ge=0, le=1_000_000)
    spawn_per_s: Rate | None = None


class Closed(Model):
    """So many clients, each asking again `think_s` after its answer: they wait, so they cannot overload."""

    kind: Literal["closed"]
    clients: int = Field(ge=0, le=1_000_000)
    think_s: Distribution = constant(0.0)
    phases: tuple[Crowd, ...] = Field((), max_length=100)
    """When there are more of them, or fewer. Who has to leave hears its answer first."""
    spawn_per_s: Rate | None = None
    """How fast their number grows; all come at once by default. The simulator's always do."""

    @property
    def most_clients(self) -> int:
        """The largest number of them at any time."""
        return max(self.clients, *(phase.clients for phase in self.phases), 0)

    def at(self, second: float) -> tuple[int, float | None]:
        """How many there are at this second, and how many start in a second (None: all at once)."""
        for phase in self.phases:
            if phase.from_s <= second < phase.until_s:
                return phase.clients, phase.spawn_per_s or self.spawn_per_s
        return self.clients, self.spawn_per_s

    @model_validator(mode="after")
    def _phases_are_in_order(self) -> Self:
        in_order(self.phases)
        return self

    @model_validator(mode="after")
    def _somebody_is_there_at_some_time(self) -> Self:
        if not self.most_clients:
            raise ValueError("there must be a client at some time")
        return self


Arrivals = Annotated[Poisson | Gamma | OnOff | Trace | Closed, Field(discriminator="kind")]
