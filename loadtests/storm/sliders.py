"""What a person may turn, and the bounds of it: a wish that passes them is refused by name, never bent in silence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from loadtests.storm.plan import LEAST_SECONDS, MOST_SECONDS
from services.contracts.storm import Slider
from services.runtime.errors import BadInput

TIMES, SECONDS_UNIT = "x capacity", "s"


def intensity(title: str, low: float, high: float, default: float) -> Slider:
    """Load, as a multiple of what the workers can do."""
    return Slider("intensity", title, low, high, 0.05 if high <= 2 else 0.5, default, TIMES)


DEADLINE = Slider("deadline_ms", "Deadline of each request", 1000, 8000, 100, 2000, "ms")
LEAVING = Slider("leaving", "Clients that leave early", 0, 100, 5, 0, "%")
SECONDS = Slider("seconds", "Length of the run", LEAST_SECONDS, MOST_SECONDS, 1, 30, SECONDS_UNIT)


def turned(sliders: Sequence[Slider], wish: Mapping[str, float]) -> dict[str, float]:
    """Every slider's value: as wished, else as it stands. Raises BadInput for a name or a value that there is not."""
    known = {slider.name: slider for slider in sliders}
    for name, value in wish.items():
        slider = known.get(name)
        if slider is None:
            raise BadInput(f"sliders.{name}: this scenario has {', '.join(known)}", f"sliders.{name}")
        _check(slider, value)
    return {name: float(wish.get(name, slider.default)) for name, slider in known.items()}


def _check(slider: Slider, value: float) -> None:
    name = f"sliders.{slider.name}"
    if not math.isfinite(value) or not slider.min <= value <= slider.max:
        raise BadInput(f"{name}: from {slider.min:g} to {slider.max:g} {slider.unit}".rstrip(), name)
    if slider.kind == "switch" and value not in (0, 1):
        raise BadInput(f"{name}: 0 or 1", name)
