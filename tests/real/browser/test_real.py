"""The page before a real router, workers and storm bench: what it shows is what /metrics says, and its buttons work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import httpx2
import pytest

from tests.real.browser.conftest import Watched
from tests.real.browser.conftest import until as shows
from tests.real.stack.stand import MODEL, ROUTER_SETTINGS, WITHIN_S, WORKER_SETTINGS, Part, spawned, steady_ports, until

Look = Callable[..., Watched]
Keep = Callable[..., None]
CLIENTS, EACH = 24, 12


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    folder = tmp_path_factory.mktemp("console")
    ports = steady_ports()
    http = httpx2.Client(timeout=WITHIN_S, trust_env=False)
    workers = [
        Part(name, "worker", folder, {**WORKER_SETTINGS, "WORKER_NAME": name}, http, next(ports), next(ports))
        for name in ("worker-0", "worker-1")
    ]
    bench_port = next(ports)
    urls = ",".join(worker.url for worker in workers)
    settings = {**ROUTER_SETTINGS, "WORKERS": urls, "STORM_URL": f"http://127.0.0.1:{bench_port}"}
    router = Part("router", "router", folder, settings, http, next(ports), next(ports))
    of_bench = {
        "STORM_PORT": str(bench_port), "STORM_ROUTER_URL": router.url, "WORKERS": urls,
        "STORM_METRICS_URL": f"http://127.0.0.1:{router.metrics_port}", "STORM_FAULT_URLS": "none",
    }  # fmt: skip
    bench = Part("storm", "storm", folder, of_bench, http, bench_port, next(ports))
    with contextlib.closing(ports), http, spawned([*workers, router, bench]):
        yield router


async def storm(url: str) -> None:
    """Three tenants, more than four slots a worker can do, with deadlines that refuse some."""
    async with httpx2.AsyncClient(base_url=url, timeout=WITHIN_S, trust_env=False) as client:

        async def one(number: int) -> None:
            tenant = ("anna", "bela", "chen")[number % 3]
            headers = {"x-tenant": tenant, "x-weir-deadline-ms": "1500"}
            body = {"model": MODEL, "prompt": "What is a weir?", "max_tokens": 60, "ignore_eos": True}
            for _ in range(EACH):
                await client.post("/v1/completions", json=body, headers=headers)

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))


def shown(page: Any, name: str) -> int:
    return int(page.locator(f"[data-total={name}]").inner_text().replace(",", ""))


def test_what_is_shown_under_load_is_what_is_measured(look: Look, router: Part, keep: Keep) -> None:
    watched = look()
    page = watched.open(router.url)
    before = shown(page, "admitted")
    load = Thread(target=lambda: asyncio.run(storm(router.url)))
    load.start()
    page.wait_for_selector(".slot.taken")
    shows(page, "document.querySelectorAll('.tenant').length === 3")
    shows(page, f"Number(document.querySelector('[data-total=admitted]').textContent) > {before}")
    keep(page, "real-under-load")
    load.join()
    until(lambda: router.metric("weir_inflight") == 0, "all is answered")
    decisions = router.metrics("weir_admission_total", by="decision")
    outcomes = router.metrics("weir_requests_total", by="outcome")
    admitted, degraded = (int(decisions.get(name, 0)) for name in ("admit", "degrade"))
    served = int(outcomes.get("served", 0))
    refused = sum(count for name, count in decisions.items() if name not in ("admit", "degrade"))
    expired = int(outcomes.get("deadline_expired", 0))
    wanted_by_name = {
        "admitted": admitted, "degraded": degraded, "served": served, "refused": int(refused), "expired": expired,
    }  # fmt: skip
    for name, wanted in wanted_by_name.items():
        text = f"{wanted:,}"
        shows(page, f"document.querySelector('[data-total={name}]').textContent === {text!r}")
    assert admitted + degraded + refused == CLIENTS * EACH
    assert watched.strangers(router.url) == []
    assert [fault for fault in watched.faults if "favicon" not in fault] == []


def test_the_life_of_a_real_request_can_be_opened(look: Look, router: Part, keep: Keep) -> None:
    page = look().open(router.url)
    with httpx2.Client(base_url=router.url, timeout=WITHIN_S, trust_env=False) as client:
        client.post("/v1/completions", json={"prompt": "What is a weir?", "max_tokens": 20}).raise_for_status()
    page.click("button.open")
    page.wait_for_selector("#life[open] .timeline")
    assert "Answered after" in page.locator("#life-title").inner_text()
    assert page.locator("#life .events li").count() >= 4
    keep(page, "real-life", whole=False)


def test_a_real_storm_starts_from_the_page_is_seen_and_stopped_and_its_report_is_kept(
    look: Look, router: Part, keep: Keep
) -> None:
    watched = look()
    page = watched.open(router.url)
    page.click("[data-scenario=burst]")
    page.click("#start")
    page.wait_for_selector("#running:not([hidden])")
    shows(page, "document.querySelectorAll('.tenant').length >= 3")
    shows(page, "[...document.querySelectorAll('#running-numbers dd')][1].textContent !== '0'")
    keep(page, "real-storm")
    page.click("#stop")
    page.wait_for_selector("#start-form:not([hidden])")
    page.wait_for_selector("#run-rows tr")
    with page.expect_download() as download:
        page.click("#run-rows a")
    report = download.value.path().read_text()
    assert "<svg" in report
    assert "<script" not in report
    assert watched.faults == []


def test_a_policy_is_switched_off_at_the_router_and_on_again(look: Look, router: Part) -> None:
    page = look().open(router.url)
    page.click("#policy-fairness")
    shows(page, "document.getElementById('lines-lede').textContent.startsWith('Fairness is off')")
    page.click("#policy-fairness")
    shows(page, "!document.getElementById('lines-lede').textContent.startsWith('Fairness is off')")
