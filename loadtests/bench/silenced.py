"""The router without parts of its observation, for which there is no setting.

Run: python -m loadtests.bench.silenced [metrics,log,journal]
"""

from __future__ import annotations

import sys
from typing import Any

from services.router import app
from services.router.__main__ import main
from services.router.telemetry.journal import Journal
from services.router.telemetry.metrics import RouterMetrics
from services.runtime.service import Service

COUNTS = (
    "admitted", "started", "refused", "ended", "served", "first_token", "degraded", "retry", "wasted", "retrieved",
)  # fmt: skip
NOTES = ("admitted", "ended")
EVERYTHING = ("metrics", "log", "journal")


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Uncounted(RouterMetrics):
    """Metrics whose `COUNTS` do nothing after `silence`."""


class Unwritten(Journal):
    """A journal whose `NOTES` do nothing after `silence`."""

    __slots__ = ()


def silence(parts: set[str]) -> None:
    """Switches these parts off for the rest of the process."""
    if "metrics" in parts:
        for name in COUNTS:
            setattr(Uncounted, name, _nothing)
        vars(app)["RouterMetrics"] = Uncounted
    if "journal" in parts:
        for name in NOTES:
            setattr(Unwritten, name, _nothing)
        vars(app)["Journal"] = Unwritten
    if "log" in parts:
        Service._log_request = _nothing  # type: ignore[method-assign]


if __name__ == "__main__":
    silence(set(sys.argv[1].split(",")) if len(sys.argv) > 1 else set())
    raise SystemExit(main())
