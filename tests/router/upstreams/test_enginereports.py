"""Asking a server for its metrics page, beside the probe: whatever the page is, the probe is not harmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.router.upstreams.call import Upstream
from services.router.upstreams.enginereports import MAX_PAGE_BYTES, MISSES, REST_S, WITHIN_S
from services.router.workers.connect import connect, root_of
from services.router.workers.prober import PROBE_TIMEOUT_S
from services.router.workers.workersfile import WorkerSpec
from services.runtime.http import Exchange
from services.runtime.upstream import UpstreamError
from tests.router.upstreams.test_enginepage import VLLM
from tests.runtime.rig import serving
from tests.virtual import run

TEXT = b"text/plain; version=0.0.4"
Answer = Callable[[Exchange], Awaitable[None]]


async def models(exchange: Exchange) -> None:
    await exchange.reply(200, b'{"data": [{"id": "m"}]}')


def page(body: bytes, status: int = 200) -> Answer:
    async def answer(exchange: Exchange) -> None:
        await exchange.reply(status, body, content_type=TEXT)

    return answer


async def never(exchange: Exchange) -> None:
    await asyncio.Event().wait()


async def drips(exchange: Exchange) -> None:
    """A page that never ends."""
    await exchange.start(200, TEXT)
    while True:
        await exchange.write(b"vllm:num_requests_running 1\n")
        await asyncio.sleep(0.01)


async def cut(exchange: Exchange) -> None:
    await exchange.start(200, TEXT)
    await exchange.write(VLLM)
    raise RuntimeError("died")


class Server:
    """An OpenAI-compatible server whose metrics page is what the test says; it counts who asks."""

    def __init__(self, metrics: Answer, listing: Answer = models) -> None:
        self.metrics, self.listing, self.asked = metrics, listing, 0

    async def answer(self, exchange: Exchange) -> None:
        self.asked += 1
        await self.metrics(exchange)

    @asynccontextmanager
    async def upstream(self, **fields: Any) -> AsyncIterator[Upstream]:
        async with serving({("GET", "/v1/models"): self.listing, ("GET", "/metrics"): self.answer}) as process:
            url = f"http://127.0.0.1:{process.bound_port}/v1"
            worker = connect(WorkerSpec(name="w", kind="openai", url=url, slots=4, **fields), 8)
            try:
                yield worker.upstream
            finally:
                worker.upstream.close()


def test_a_probe_brings_what_the_engine_says() -> None:
    async def main() -> None:
        async with Server(page(VLLM)).upstream() as upstream:
            seen = await upstream.probe()
            assert (seen.models, seen.batch, seen.slots) == (("m",), 3, 0)
            assert seen.report is not None
            assert (seen.report.waiting, seen.report.kv_tokens) == (2, 1600)

    run(main)


@pytest.mark.parametrize(
    "metrics",
    [
        page(b"", 404), page(b'{"error": "no key"}', 401), page(b"<html></html>"), page(b'{"data": []}'),
        page(b"\xff" * 100),
    ],
    ids=["404", "401", "HTML", "JSON", "bytes"],
)  # fmt: skip
def test_a_server_without_such_a_page_is_asked_once_a_minute(metrics: Answer) -> None:
    server = Server(metrics)

    async def main() -> None:
        async with server.upstream() as upstream:
            for _ in range(10):
                seen = await upstream.probe()
                assert (seen.models, seen.report, seen.batch) == (("m",), None, None)
            assert server.asked == 1
            await asyncio.sleep(REST_S)
            await upstream.probe()
            assert server.asked == 2

    run(main)


@pytest.mark.parametrize(
    "broken",
    [page(b"", 500), page(VLLM + b"#" * MAX_PAGE_BYTES), never, drips, cut],
    ids=["500", "too large", "silent", "endless", "cut"],
)
def test_a_page_that_fails_harms_no_probe_and_is_soon_asked_for_less(broken: Answer) -> None:
    server = Server(page(VLLM))

    async def main() -> None:
        async with server.upstream() as upstream:
            known = (await upstream.probe()).report
            server.metrics = broken
            for _ in range(MISSES - 1):  # the last report stays for so long
                seen = await upstream.probe()
                assert (seen.models, seen.report) == (("m",), known)
            for _ in range(5):
                seen = await upstream.probe()
                assert (seen.models, seen.report) == (("m",), None)
            assert server.asked == 1 + MISSES
            server.metrics = page(VLLM)
            await asyncio.sleep(REST_S)
            assert (await upstream.probe()).report == known

    run(main)


@pytest.mark.parametrize("broken", [never, drips], ids=["silent", "endless"])
def test_a_slow_page_delays_a_probe_by_half_a_second_at_most(broken: Answer) -> None:
    async def main() -> None:
        async with Server(broken).upstream() as upstream:
            loop = asyncio.get_running_loop()
            before = loop.time()
            await upstream.probe()
            assert loop.time() - before == pytest.approx(WITHIN_S, abs=0.05)

    assert WITHIN_S < PROBE_TIMEOUT_S / 1.5
    run(main)


def test_a_good_page_does_not_make_up_for_a_failed_probe() -> None:
    async def main() -> None:
        async with Server(page(VLLM), listing=page(b"", 500)).upstream() as upstream:
            with pytest.raises(UpstreamError, match="/models answered 500"):
                await upstream.probe()

    run(main)


def test_nothing_is_asked_where_the_list_says_so() -> None:
    server = Server(page(VLLM))

    async def main() -> None:
        async with server.upstream(metrics=False) as upstream:
            assert (await upstream.probe()).report is None
        assert server.asked == 0

    run(main)


def test_the_page_is_at_the_servers_root() -> None:
    assert root_of("http://a:1/v1") == "http://a:1"
    assert root_of("http://a:1/one/v1") == "http://a:1/one"
    assert root_of("http://a:1") == "http://a:1"
