"""What one of several routers has borrowed, as gauges and as a part of /admin/state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.core.snapshot import finite
from services.router.deciding.leasing import Leasing


class Sharing(Collector):
    """The gauges of a router that shares its workers."""

    def __init__(self, leasing: Leasing) -> None:
        self._leasing = leasing

    def collect(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily(
            "weir_lease_slots", "Slots that a worker lends to this router now.", labels=["worker"]
        )
        up = GaugeMetricFamily("weir_lease_up", "1 while the stream of a worker's grants is open.", labels=["worker"])
        for worker, link in self._leasing.links.items():
            slots.add_metric([worker.name], worker.slots)
            up.add_metric([worker.name], int(link.lease.is_up))
        yield slots
        yield up
        routers = GaugeMetricFamily("weir_pool_routers", "Routers that share the pool.", labels=["pool"])
        age = GaugeMetricFamily(
            "weir_exchange_age_seconds", "Seconds since the exchange of a pool answered last.", labels=["pool"]
        )
        for name, pool in self._leasing.pools.items():
            routers.add_metric([name], pool.leases.ledger.routers)
            age.add_metric([name], pool.exchanging.age_s)
        yield routers
        yield age


def sharing_state(leasing: Leasing) -> dict[str, Any]:
    """For /admin/state: each pool's exchange and levels, each worker's lease."""
    return {
        "router": leasing.name,
        "pools": [
            {
                "name": name,
                "routers": pool.leases.ledger.routers,
                "exchange_up": pool.exchanging.up,
                "exchange_age_s": finite(pool.exchanging.age_s),
                "planned_slots": pool.slots,
                "levels": [
                    {
                        "class": node.name,
                        "level": pool.leases.level.clock(node.name).level(node.flows.given),
                        "lowest": finite(pool.leases.level.clock(node.name).lowest),
                        "turn": pool.leases.level.turn(node),
                    }
                    for node in pool.leases.pool.nodes.values()
                ],
                "wants": [want._asdict() for want in pool.leases.last_wants],
            }
            for name, pool in leasing.pools.items()
        ],
        "workers": [
            {
                "name": worker.name,
                "up": link.lease.is_up,
                "lent": worker.slots,
                "in_flight": link.lease.holding.uses,
                "slots": link.lease.holding.slots,
                "recalled": link.lease.holding.recall,
            }
            for worker, link in leasing.links.items()
        ],
    }
