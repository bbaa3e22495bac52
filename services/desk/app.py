"""The composition root: the parts of the desk are created and connected here only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.desk.config import DeskSettings
from services.desk.learned import LearnedSlots
from services.desk.lending import DeskLending
from services.runtime.api import new_api
from services.runtime.drain import Drain
from services.runtime.grantstreams import loop_time
from services.runtime.health import Readiness, add_health
from services.runtime.internal import inner_checks, is_health
from services.runtime.leaseroutes import LEASE, LEASE_EXAMPLES, add_lease_routes
from services.runtime.log import Log
from services.runtime.serve import Process, from_settings
from services.runtime.service import Service
from services.runtime.starting import CannotStart
from services.runtime.telemetry import metrics_app, new_registry

NAME = "desk"
Books = Mapping[str, DeskLending]
"""By server."""


def build(settings: DeskSettings, *, rng: Random | None = None, log: Log | None = None) -> Process:
    """A desk that is ready to run. `rng`: all its randomness; by default the operating system's, for ids."""
    log, drain, registry = log or Log(NAME, settings.log_level), Drain(), new_registry()
    books = {
        name: DeskLending(LearnedSlots(settings.desk_max_slots) if slots is None else slots, settings.desk_hold_s)
        for name, slots in settings.servers.items()
    }
    registry.register(DeskMetrics(books))
    api = new_api("Weir desk", "Lends slots of servers that cannot lend.", examples=LEASE_EXAMPLES)
    add_health(api, NAME, lambda: Readiness(True, {"servers": list(books)}), drain)
    for name, lending in books.items():
        add_lease_routes(api, lending, f"/{name}")

    async def start() -> None:
        if not books:
            raise CannotStart("DESK_SERVERS is empty: name the servers and their slots, as in vllm-a=32,vllm-b=auto")
        for lending in books.values():
            lending.book.begin(loop_time())

    async def stop() -> None:
        for lending in books.values():
            lending.stop()

    def leave() -> None:
        for lending in books.values():
            lending.is_leaving = True
            lending.end_streams()

    drain.on_begin(leave)
    token, hosts = settings.shared_token, settings.allowed_hosts
    return from_settings(
        settings,
        name=NAME,
        port=settings.desk_port,
        port_variable="DESK_PORT",
        app=Service(NAME, api, log=log, drain=drain, rng=rng, quiet=[f"/{name}{LEASE}" for name in books]),
        metrics=metrics_app(registry, log),
        registry=registry,
        log=log,
        drain=drain,
        checks=inner_checks(settings.host, token=token, allowed_hosts=hosts, is_open=is_health),
        metrics_checks=inner_checks(settings.metrics_host, token=token, allowed_hosts=hosts),
        start=start,
        stop=stop,
        rng=rng,
        inside=books,
    )


class DeskMetrics(Collector):
    """What is lent of each server, as of the scrape."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def collect(self) -> Iterator[Metric]:
        """`weir_desk_*`, by server."""
        slots = GaugeMetricFamily("weir_desk_slots", "Slots of the server", labels=["server"])
        promised = GaugeMetricFamily("weir_desk_promised_slots", "Slots promised or in use", labels=["server"])
        held = GaugeMetricFamily("weir_desk_held_slots", "Slots kept for routers that are gone", labels=["server"])
        routers = GaugeMetricFamily("weir_desk_lease_routers", "Routers with a lease", labels=["server"])
        moves = CounterMetricFamily(
            "weir_desk_lease_moves", "Slots lent to a router that had not had them", labels=["server"]
        )
        for name, lending in self._books.items():
            book = lending.book
            slots.add_metric([name], book.slots)
            promised.add_metric([name], book.promised)
            held.add_metric([name], book.held)
            routers.add_metric([name], len(book.leases()))
            moves.add_metric([name], book.moves)
        yield from (slots, promised, held, routers, moves)
