"""Prometheus: one registry per process, buckets up to 120 s, labels from closed sets (docs/metrics.md).

A histogram that ends below the deadline answers NaN for the tail. `_created` series, which double a scrape, are off.
Services keep the labelled children: `labels()` costs four times an increment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import disable_created_metrics as _disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from services.runtime.api import describe, new_api
from services.runtime.asgi import EXCHANGE, AsgiApp
from services.runtime.exposition import Registry, page_of
from services.runtime.http import App, Exchange
from services.runtime.log import Log

SECONDS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0,
)  # fmt: skip


def new_registry() -> Registry:
    """A registry with the process's memory, CPU, descriptors and event loop tasks."""
    _disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped upstream
    registry = Registry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(TasksCollector())
    return registry


class TasksCollector(Collector):
    """The number of tasks of the running event loop, which grows with a leak of waiting tasks."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            count = len(asyncio.all_tasks())
        except RuntimeError:
            return
        yield GaugeMetricFamily("python_asyncio_tasks", "Unfinished asyncio tasks.", value=count)


def add_metrics(api: FastAPI, registry: CollectorRegistry) -> None:
    """Add GET and HEAD /metrics. Back-pressure limits a scraper that does not read to two pages."""

    async def metrics(request: Request) -> Response:
        await asyncio.sleep(0)  # other requests come first, and a scraper that has broken off is noticed
        exchange: Exchange = request.scope[EXCHANGE]
        page = b"" if exchange.gone else page_of(registry)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    description = describe("The service's metrics, in Prometheus' text format.", refusals=())
    api.add_api_route("/metrics", metrics, methods=["GET", "HEAD"], **description)


def metrics_app(registry: CollectorRegistry, log: Log) -> App:
    """The application of a metrics listener that serves nothing else."""
    api = new_api("Weir's metrics", "The metrics listener.")
    add_metrics(api, registry)
    return AsgiApp(api, log)
