"""Reports that no simulator made, for whatever reads reports."""

from __future__ import annotations

import math
from typing import Any

from loadtests.simulator.report import (
    Capacity,
    Fairness,
    Hints,
    Ledger,
    PolicyReport,
    Quality,
    Quantiles,
    Series,
    TenantReport,
    Work,
)

WAITS = Quantiles(count=100, mean=0.1, p50=0.08, p90=0.2, p95=0.25, p99=0.3, max=0.4)
LATENCIES = Quantiles(count=100, mean=0.2, p50=0.16, p90=0.3, p95=0.33, p99=0.5, max=0.6)


def tenant(name: str, *, on_time: int = 80, distinct: int = 100, tenants: int = 1) -> TenantReport:
    return TenantReport(
        name=name,
        tenant_class="standard",
        weight=1.0,
        tenants=tenants,
        ledger=Ledger(distinct=distinct, attempts=distinct, on_time=on_time, rejected={"yield": distinct - on_time}),
        offered_per_s=10.0,
        goodput_per_s=8.0,
        goodput_cost_per_s=1600.0,
        served_cost_share=0.5,
        on_time_share=on_time / distinct,
        latency_s=LATENCIES,
        first_token_s=WAITS,
        wait_s=WAITS,
    )


def report(
    policy: str = "weir",
    load: float | None = None,
    *,
    seed: int = 1,
    goodput: float = 0.95,
    buckets: int = 40,
    **changed: Any,
) -> PolicyReport:
    """One run at twice capacity of 200 requests/s; `goodput` is relative to capacity."""
    wobble = [1 + 0.06 * math.sin(7 * i + seed + len(policy)) for i in range(buckets)]
    on_time = tuple(round(200 * goodput * each) for each in wobble)
    zeros = (0,) * buckets
    made: dict[str, Any] = {
        "title": "made up",
        "policy": policy,
        "seed": seed,
        "load": load,
        "offered_load": 2.0,
        "window_s": 34.0,
        "capacity": Capacity(200.0, 40_000.0, 16, 1.0, 2.0, 0.08),
        "ledger": Ledger(distinct=13_600, attempts=13_600, on_time=round(6_800 * goodput), rejected={"yield": 6_000}),
        "tenants": (tenant("a"), tenant("b", on_time=60)),
        "goodput_per_s": 200 * goodput,
        "goodput_cost_per_s": 40_000 * goodput,
        "work": Work(available_s=544.0, busy_s=544.0, useful_s=544.0 * min(1.0, goodput)),
        "latency_s": LATENCIES,
        "first_token_s": WAITS,
        "wait_s": WAITS,
        "latency_to_deadline": Quantiles(count=10, mean=0.3, p50=0.3, p90=0.5, p95=0.6, p99=0.9, max=1.0),
        "admitted": 7_000,
        "dropped_after_admission_share": 0.012,
        "missed_after_worker_share": 0.0,
        "answers_after_deadline": 0,
        "dispatches": 6_900,
        "hints": Hints(),
        "fairness": Fairness(9_000.0, ("a", "b"), watched=2, largest_cost=400.0, jain_min=0.99, jain_mean=1.0),
        "quality": Quality(6_800 * goodput, 6_800 * goodput, {0: 6_800}, 0, 0, 0.0),
        "coverage": None,
        "series": Series(
            bucket_s=1.0,
            offered=(400,) * buckets,
            on_time=on_time,
            late=zeros,
            refused=(200,) * buckets,
            queue_depth=zeros,
            running=(16,) * buckets,
            level=zeros,
            latency_p95_s=(None,) * buckets,
            per_tenant_served_cost={"a": (20_000.0,) * buckets, "b": tuple(20_000.0 * goodput * w for w in wobble)},
        ),
        "simulated_requests": 16_000,
        "real_s": 0.4,
    }  # fmt: skip
    return PolicyReport(**(made | changed))
