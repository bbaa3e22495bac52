"""What one of several routers shows of its workers' slots: a projection of `sharing` in /admin/state.

Bounds: MAX_POOLS pools with MAX_CLASSES classes each, and MAX_WORKERS leases.
"""

from __future__ import annotations

from typing import Any

from services.contracts.console import LeaseNow, SharedClassNow, SharedPoolNow, SharingNow
from services.core.elsewhere import STALE_S
from services.router.console.tables import MAX_WORKERS

MAX_POOLS = 8
MAX_CLASSES = 32

Json = dict[str, Any]


def sharing_now(state: Json) -> SharingNow:
    """`state`: as `services.router.telemetry.sharing.sharing_state` makes it."""
    pools, workers = state["pools"], state["workers"]
    return SharingNow(
        router=state["router"],
        pools=[_pool(pool) for pool in pools[:MAX_POOLS]],
        other_pools=max(0, len(pools) - MAX_POOLS),
        leases=[_lease(worker) for worker in workers[:MAX_WORKERS]],
        other_leases=max(0, len(workers) - MAX_WORKERS),
    )


def _pool(pool: Json) -> SharedPoolNow:
    age_s, wants = pool["exchange_age_s"], {want["class_name"]: want for want in pool["wants"]}
    return SharedPoolNow(
        name=pool["name"],
        routers=pool["routers"],
        exchange_age_s=None if age_s is None else round(age_s, 2),
        exchange_stale=age_s is None or age_s > STALE_S,
        planned_slots=pool["planned_slots"],
        classes=[_class(each, wants.get(each["class"])) for each in pool["levels"][:MAX_CLASSES]],
    )


def _class(of: Json, want: Json | None) -> SharedClassNow:
    lowest = of["lowest"]
    return SharedClassNow(
        name=of["class"],
        level=round(of["level"], 1),
        lowest=None if lowest is None else round(lowest, 1),
        turn=round(of["turn"], 1),
        wanted=0 if want is None else want["requests"],
        light=0 if want is None else want["light"],
    )


def _lease(worker: Json) -> LeaseNow:
    return LeaseNow(
        worker=worker["name"],
        up=worker["up"],
        borrowed=worker["lent"],
        in_flight=worker["in_flight"],
        slots=worker["slots"],
        recalled=worker["recalled"],
    )
