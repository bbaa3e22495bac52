"""Whoever scrapes, however: a page at a time, and nothing that grows."""

from __future__ import annotations

import asyncio
import io

import pytest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.runtime.connection import Connection
from services.runtime.exposition import Registry
from services.runtime.guard import GuardLimits
from services.runtime.log import Log
from services.runtime.shared import Shared
from services.runtime.telemetry import metrics_app, new_registry
from tests.runtime.rig import Tape
from tests.virtual import run

ASK = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


class Asked(Collector):
    """A metric that knows how often it was asked for."""

    def __init__(self, registry: Registry) -> None:
        self.times = 0
        registry.register(self)

    def collect(self) -> list[GaugeMetricFamily]:
        self.times += 1
        return [GaugeMetricFamily("weir_asked", "How often.", value=self.times)]


async def scraping(*requests: bytes, reads: bool) -> tuple[int, bytes]:
    """How many pages were made for a scraper that reads them or does not, and what it was sent."""
    registry = Registry()
    asked = Asked(registry)
    tape, connection = (
        Tape(),
        Connection(Shared(metrics_app(registry, Log("test", stream=io.BytesIO())), GuardLimits(), idle_timeout_s=60.0)),
    )
    connection.connection_made(tape)
    if not reads:
        connection.pause_writing()
    connection.data_received(b"".join(requests))
    for _ in range(50):
        await asyncio.sleep(0)
    made = asked.times
    connection.connection_lost(None)
    await asyncio.sleep(0)
    return made, tape.written


@pytest.mark.parametrize(("reads", "pages"), [(True, 12), (False, 1)])
def test_a_scraper_that_does_not_read_has_one_page_made_for_it_however_often_it_asks(reads: bool, pages: int) -> None:
    made, written = run(scraping(*[ASK] * 12, reads=reads))
    assert made == pages
    assert written.count(b"# HELP weir_asked") == (pages if reads else 0)


@pytest.mark.parametrize("turns", [0, 1])
def test_for_a_scraper_that_has_broken_off_no_page_is_made(turns: int) -> None:
    async def main() -> int:
        registry = Registry()
        asked = Asked(registry)
        app = metrics_app(registry, Log("test", stream=io.BytesIO()))
        connection = Connection(Shared(app, GuardLimits(), idle_timeout_s=60.0))
        connection.connection_made(Tape())
        connection.data_received(ASK)
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.connection_lost(ConnectionResetError())
        for _ in range(50):
            await asyncio.sleep(0)
        return asked.times

    assert run(main()) == 0


@pytest.mark.parametrize(
    ("request_line", "status", "shown"),
    [(b"GET /metrics", b"200", True), (b"HEAD /metrics", b"200", False), (b"GET /", b"404", False)],
)
def test_only_the_page_is_there(request_line: bytes, status: bytes, shown: bool) -> None:
    made, written = run(scraping(request_line + b" HTTP/1.1\r\nhost: x\r\n\r\n", reads=True))
    assert written[9:12] == status
    assert (b"# HELP weir_asked" in written) is shown
    assert (CONTENT_TYPE_LATEST.encode() in written) is (status == b"200")
    assert made == (status == b"200")


def test_a_task_that_waits_for_what_never_comes_is_counted() -> None:
    async def main() -> tuple[float, float]:
        registry = new_registry()
        before = registry.get_sample_value("python_asyncio_tasks")
        waiting = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
        after = registry.get_sample_value("python_asyncio_tasks")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return before or 0.0, after or 0.0

    before, after = run(main())
    assert after - before == 3


def test_where_no_loop_runs_no_tasks_are_told() -> None:
    assert new_registry().get_sample_value("python_asyncio_tasks") is None
