"""Several routers before one pool of workers: how requests reach them, how far they are, and what goes wrong."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadtests.scenarios.arrivals import Span
from loadtests.scenarios.distributions import Model

MAX_ROUTERS = 64
Place = Annotated[int, Field(ge=0, lt=MAX_ROUTERS)]


class RouterFault(Span):
    """What happens to one router, or between it and workers or the store."""

    kind: Literal["killed", "frozen", "cut"]
    """Killed: its connections are closed, and a new process begins at `until_s`. Frozen: it does nothing, and then goes
    on. Cut: messages are lost.
    """
    router: Place
    of: Literal["workers", "store"] = "workers"
    """What a cut parts it from."""
    workers: int | None = Field(None, ge=1, le=1000)
    """The number of workers, from the first; all by default."""
    ways: Literal["both", "to", "from"] = "both"
    """Which messages a cut loses: those to the workers or the store, those from them, or both."""


class Routers(Model):
    """Equal routers, each with a scheduler of its own."""

    count: int = Field(ge=1, le=MAX_ROUTERS)
    half_trip_ms: float = Field(0.25, ge=0, le=1000)
    """From a router to a worker or to the store, and back."""
    exchange_ms: float = Field(200.0, ge=0, le=60_000)
    """Between two exchanges of a router; 0: none."""
    leases: Literal["levelled", "static"] = "levelled"
    """Static: each router has an equal part of the slots for good, and its own figures only, for comparison."""
    ingress: Literal["even", "zipf", "tenant", "90/10"] = "even"
    """Which router a request reaches, unless its group names `routers`: any; the first more often than the second, by
    Zipf's law; that of its tenant; nine of ten the first.
    """
    faults: tuple[RouterFault, ...] = Field((), max_length=100)

    @model_validator(mode="after")
    def _faults_name_routers(self) -> Self:
        for fault in self.faults:
            if fault.router >= self.count:
                raise ValueError(f"faults: there is no router {fault.router}, the last is {self.count - 1}")
        return self
