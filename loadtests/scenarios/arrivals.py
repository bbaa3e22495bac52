"""When a tenant's clients ask: at a rate, as recorded in a trace, or after each answer.

Open arrivals do not wait for answers, so a slow server gets no relief. A closed loop slows down with its server, so
load tests that use one see no collapse (coordinated omission).
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
    """An interval of the run, in seconds."""

    from_s: Seconds
    until_s: PositiveSeconds

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.until_s <= self.from_s:
            raise ValueError(f"until_s ({self.until_s:g}) must be after from_s ({self.from_s:g})")
        return self


def in_order(spans: Sequence[Span]) -> None:
    """Raises ValueError if spans overlap or are out of order."""
    for before, after in pairwise(spans):
        if after.from_s < before.until_s:
            raise ValueError(f"the phase from {after.from_s:g} s begins before the one before it ends")


class Phase(Span):
    """The rate is `times` the usual one."""

    times: float = Field(ge=0, le=10_000)


class Open(Model):
    """Arrivals that do not wait for answers, at a multiple of capacity or a number of requests per second."""

    load: Load | None = None
    rate_per_s: Rate | None = None
    phases: tuple[Phase, ...] = Field((), max_length=1000)

    @property
    def moments(self) -> list[float]:
        """The seconds at which the rate changes, including 0."""
        return sorted({0.0, *(second for phase in self.phases for second in (phase.from_s, phase.until_s))})

    def times_at(self, second: float) -> float:
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
    kind: Literal["poisson"]


class Gamma(Open):
    """Gamma gaps: bursts with a cv above 1, regular arrivals below 1."""

    kind: Literal["gamma"]
    cv: float = Field(gt=0.01, le=50)


class OnOff(Open):
    """Poisson while on, silent while off; the rate is the mean over both. All tenants of a group start on together."""

    kind: Literal["on_off"]
    on_s: PositiveSeconds
    off_s: PositiveSeconds


class Trace(Model):
    """Times and lengths from a file, at a load or `time_scale` times the recorded speed."""

    kind: Literal["trace"]
    path: Path
    format: TraceFormat | None = None
    """By default recognized by its columns."""
    time_scale: float | None = Field(None, gt=0, le=1e6)
    load: Load | None = None
    token_scale: float = Field(1.0, gt=0, le=1000)
    by_client: bool = False
    """Each client of the trace becomes the tenant `name-client`; otherwise all are one tenant."""
    start_s: float = Field(0.0, ge=0, le=1e9)
    length_s: float | None = Field(None, gt=0, le=1e9)
    """Length of the replayed part; by default the rest."""
    repeat: bool = True
    """Whether to start again at the end; otherwise no requests follow."""

    def part(self) -> Part:
        """The replayed part. Raises LabError if the file is invalid."""
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
    """This number of clients instead of the usual one."""

    clients: int = Field(ge=0, le=1_000_000)
    spawn_per_s: Rate | None = None


class Closed(Model):
    """Clients that ask again `think_s` after each answer. They wait, so they cannot overload the server."""

    kind: Literal["closed"]
    clients: int = Field(ge=0, le=1_000_000)
    think_s: Distribution = constant(0.0)
    phases: tuple[Crowd, ...] = Field((), max_length=100)
    """Times with more or fewer clients. A client that has to leave waits for its answer first."""
    spawn_per_s: Rate | None = None
    """Growth of their number; all at once by default, and always in the simulator."""

    @property
    def max_clients(self) -> int:
        return max(self.clients, *(phase.clients for phase in self.phases), 0)

    def at(self, second: float) -> tuple[int, float | None]:
        """The number of clients at this second, and how many start per second (None: all at once)."""
        for phase in self.phases:
            if phase.from_s <= second < phase.until_s:
                return phase.clients, phase.spawn_per_s or self.spawn_per_s
        return self.clients, self.spawn_per_s

    @model_validator(mode="after")
    def _phases_are_in_order(self) -> Self:
        in_order(self.phases)
        return self

    @model_validator(mode="after")
    def _has_a_client_at_some_time(self) -> Self:
        if not self.max_clients:
            raise ValueError("there must be a client at some time")
        return self


Arrivals = Annotated[Poisson | Gamma | OnOff | Trace | Closed, Field(discriminator="kind")]
