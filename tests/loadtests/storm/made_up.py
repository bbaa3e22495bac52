"""Runs that nobody has made, for reports and commands."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtests.storm.scenarios import SCENARIOS
from services.contracts.storm import Mark, PolicySwitches, Run, Second, TenantCounts


def a_run(id: str = "a1b2", scenario: str = "burst", **changed: Any) -> Run:
    """Ten seconds of a burst."""
    known = SCENARIOS[scenario]
    series = [
        Second(
            s=s, sent=20 + 10 * (3 <= s < 6), on_time=15, refused=5 + 10 * (3 <= s < 6), p50_ms=500.0 + s,
            p95_ms=None if s == 4 else 900.0, waiting=s, level=s % 3, sources={"db": 2, "cache": s},
        )
        for s in range(10)
    ]  # fmt: skip
    tenants = [
        TenantCounts(id="anna", asked=100, answered=90, sent=120, on_time=90, refused=30, p50_ms=510.0, p95_ms=900.0),
        TenantCounts(id="<b>ben</b>", asked=0),
    ]
    run = Run(
        run=id, scenario=scenario, title=known.file.title, began_at_ms=1_790_000_000_000, seconds=10.0, lasted_s=10.2,
        ended="done", why="", sliders={"intensity": 5.0, "seconds": 10.0}, policy=PolicySwitches(True, True, True),
        policy_changed=False, capacity_per_s=26.6, capped=False, on_time_share=0.65, goodput_share=0.97,
        answered_share=0.9, p50_ms=510.0, p95_ms=901.5, deadline_ms=2000.0, wasted_s=0.5, wasted_share=0.003,
        caption=known.caption, watch=list(known.file.watch), series=series, tenants=tenants,
        refused_by_code={"deadline_infeasible": 70, "yield": 10}, failed_by_code={}, sources={"db": 20, "cache": 45},
        router_counted={"served": 150.0, "yield": 10.0}, marks=[Mark(3.0, "the burst"), Mark(6.0, "after the burst")],
        worst_lag_ms=3.5, sent=230, on_time=150, refused=80,
    )  # fmt: skip
    return msgspec.structs.replace(run, **changed)
