"""Ports for a stack that is started, or decided about, on this machine."""

from __future__ import annotations

from services.cli.parts import metrics_offset
from services.cli.ports import free_port, is_free

SERVICES = ("router_port", "retrieval_port", "governor_port", "storm_port")
STORES = ("embedded_postgres_port", "embedded_redis_port")
PARTS = (*SERVICES, *STORES, "worker_port")  # the last: further workers are above it
HIGHEST = 65_535


def stack_ports() -> dict[str, int]:
    """A free port for each part by its setting, with a free one for its metrics.

    The ports follow one another. Were each drawn by itself, one part's metrics would sometimes meet another's.
    """
    while True:
        first = free_port()
        ports = {name: first + place for place, name in enumerate(PARTS)}
        wanted = (*ports.values(), *metrics_of(ports))
        if max(wanted) <= HIGHEST and all(is_free("127.0.0.1", port) for port in wanted):
            return ports


def metrics_of(ports: dict[str, int]) -> list[int]:
    """Where the metrics of those parts listen."""
    return [port + metrics_offset(name.upper()) for name, port in ports.items() if name not in STORES]
