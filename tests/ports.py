"""Ports for a stack that is started, or decided about, on this machine."""

from __future__ import annotations

from services.cli.config import GOVERNOR_METRICS_OFFSET, METRICS_OFFSET, STORM_METRICS_OFFSET
from services.cli.ports import free_port, is_free

PARTS = (
    "router_port", "retrieval_port", "governor_port", "storm_port", "embedded_postgres_port", "embedded_redis_port",
    "worker_port",  # the last: further workers are above it
)  # fmt: skip
METRICS = {
    "router_port": METRICS_OFFSET, "retrieval_port": METRICS_OFFSET, "worker_port": METRICS_OFFSET,
    "governor_port": GOVERNOR_METRICS_OFFSET, "storm_port": STORM_METRICS_OFFSET,
}  # fmt: skip
"""How far above its own port a part's metrics listen."""


def stack_ports() -> dict[str, int]:
    """A free port for each part by its setting, with a free one for its metrics.

    The ports follow one another. Were each drawn by itself, one part's metrics would sometimes meet another's.
    """
    while True:
        first = free_port()
        ports = {name: first + place for place, name in enumerate(PARTS)}
        if all(is_free("127.0.0.1", port) for port in (*ports.values(), *metrics_of(ports))):
            return ports


def metrics_of(ports: dict[str, int]) -> list[int]:
    """Where the metrics of those parts listen."""
    return [ports[name] + above for name, above in METRICS.items()]
