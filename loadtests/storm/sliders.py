"""The limits of a storm and the sliders within them. A value outside is rejected by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from loadtests.scenarios.model import Turn
from services.cli.errors import LabError
from services.contracts.storm import Slider
from services.runtime.errors import BadInput

MAX_RATE_PER_S = 1000.0
MAX_CONNECTIONS = 800
MAX_RETURNING = 5000
MIN_SECONDS, MAX_SECONDS = 10.0, 60.0
MAX_CLIENT_TIMEOUT_S = 12.0
MAX_TRIES = 6
"""the first try and five retries"""

USUAL = {
    one.name: one
    for one in (
        Slider("outage_s", "Length of the outage", 2, 10, 1, 6, "s"),
        Slider("retries", "Retries of each client", 0, 5, 1, 3),
        Slider("obey_hints", "Clients obey retry hints", 0, 1, 1, 0, kind="switch"),
        Slider("slow_factor", "Slowdown factor", 2, 20, 1, 8, "x"),
        Slider("deadline_ms", "Deadline of each request", 1000, 8000, 100, 2000, "ms"),
        Slider("leaving", "Clients that disconnect early", 0, 100, 5, 0, "%"),
        Slider("seconds", "Length of the run", MIN_SECONDS, MAX_SECONDS, 1, 30, "s"),
    )
}
"""Sliders with the same meaning in every scenario."""


def slider(turn: Turn) -> Slider:
    """The slider of a scenario file. Raises LabError if it is incomplete."""
    usual = USUAL.get(turn.name)
    if usual is not None:
        given = {"title": turn.title or None, "min": turn.low, "max": turn.high, "default": turn.default}
        return replace(usual, **{name: value for name, value in given.items() if value is not None})
    if not turn.title or turn.low is None or turn.high is None or turn.default is None:
        raise LabError(f"sliders.{turn.name}: write its title, low, high and default.")
    step = 0.05 if turn.high <= 2 else 0.5
    return Slider(turn.name, turn.title, turn.low, turn.high, step, turn.default, "x capacity")


def slider_values(sliders: Sequence[Slider], values: Mapping[str, float]) -> dict[str, float]:
    """Every slider's value: the given or the default one. Raises BadInput for an unknown name or value."""
    known = {slider.name: slider for slider in sliders}
    for name, value in values.items():
        slider = known.get(name)
        if slider is None:
            raise BadInput(f"sliders.{name}: this scenario has {', '.join(known)}", f"sliders.{name}")
        _check(slider, value)
    return {name: float(values.get(name, slider.default)) for name, slider in known.items()}


def _check(slider: Slider, value: float) -> None:
    name = f"sliders.{slider.name}"
    if not math.isfinite(value) or not slider.min <= value <= slider.max:
        raise BadInput(f"{name}: from {slider.min:g} to {slider.max:g} {slider.unit}".rstrip(), name)
    if slider.kind == "switch" and value not in (0, 1):
        raise BadInput(f"{name}: 0 or 1", name)
