"""A scheduler as an operator sees it, for tests of what is shown."""

from __future__ import annotations

from services.core.scheduler import Scheduler
from services.core.snapshot import busiest, take
from services.router.operating.state import Json, scheduler_state


def state(scheduler: Scheduler, now: float, most: int = 50) -> Json:
    """The JSON of a full snapshot that describes so many tenants."""
    return scheduler_state(take(scheduler, now, busiest(scheduler, most), full=True))
