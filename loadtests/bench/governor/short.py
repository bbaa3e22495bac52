"""The governor's part of `make bench`: its speed and a small burst. All of it: `python -m loadtests.bench.governor`."""

from __future__ import annotations

from loadtests.bench.governor import burst, speed
from loadtests.report.figure import Figure

CLIENTS, STUB_S, COMING_BACK_STUB_S = 20, 2.0, 0.1


async def measure(seconds: float) -> list[Figure]:
    once = await burst.at_once(CLIENTS, STUB_S)
    again = await burst.coming_back(CLIENTS, COMING_BACK_STUB_S)
    return [*await speed.measure(seconds / 2, 1), *burst.figures(once, again)]
