"""What a scrape finds: the original's five names, and nothing that the operator is not told of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.governor.backends import StubBackend
from services.governor.gate import Gate, GovernorLimits
from services.governor.job import Ended
from services.governor.metrics import GovernorMetrics
from services.runtime.telemetry import new_registry
from tests.governor.stand import Stand, governor, until
from tests.governor.talk import short, upload
from tests.virtual import run

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ORIGINAL = {
    "heptamini_backend_inflight", "heptamini_backend_cap", "heptamini_server_health",
    "heptamini_executed_total", "heptamini_yielded_total",
}  # fmt: skip
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")


def series() -> set[str]:
    """The names that a governor of its own exports, a histogram's without their endings."""
    registry = new_registry()
    metrics = GovernorMetrics(registry)
    metrics.watch(Gate(cap=2, bounds=GovernorLimits(), random=lambda: 0.0), lambda: 3)
    metrics.ended(Ended.DONE, 1.5)
    found = {sample.name for family in registry.collect() for sample in family.samples}
    for ending in OF_A_HISTOGRAM:
        found = {name.removesuffix(ending) for name in found}
    return {name for name in found if not name.startswith(("python_", "process_"))}


def test_a_scrape_has_the_originals_five_names_and_the_rest_under_ours() -> None:
    others = series() - ORIGINAL
    assert series() >= ORIGINAL
    assert all(name.startswith("weir_governor_") for name in others)


def test_every_metric_stands_in_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(series()) if f"`{name}`" not in page] == []


def test_jobs_of_invented_names_add_no_series() -> None:
    """A job, a payload and a client are whatever a client calls them: none of it is a label."""

    async def main() -> None:
        async with governor(StubBackend(0.0)) as stand:
            pages = []
            for first in (0, 10, 500):
                for number in range(first, first + 10 if not first else first + 490):
                    line = await stand.connect()
                    frames = upload(b"%d" % number, job=f"J_{number}")
                    for frame in frames[:-1]:
                        await line.ask(frame)
                    if number % 3:
                        assert short(await line.ask(frames[-1]))[1] == "done"
                    line.writer.transport.abort()
                await until(lambda: stand.gate.status.inflight == 0)
                pages.append(await page(stand))
            assert pages[0] == pages[1] == pages[2]

    run(main())


async def page(stand: Stand) -> set[bytes]:
    """The series on the metrics listener."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.process.bound_metrics_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).split(b"\r\n\r\n", 1)[1]
    writer.close()
    return {line.rpartition(b" ")[0] for line in text.splitlines() if not line.startswith(b"#")}
