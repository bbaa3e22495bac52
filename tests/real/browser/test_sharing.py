"""What the page says of several routers: absent for one, and for two real ones what each has borrowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from tests.console.pictures import sharing as shown
from tests.real.browser.conftest import NARROW, SCREENSHOTS, Watched, soon, until
from tests.real.browser.fake import Fake
from tests.real.stack.stand import MODEL, WITHIN_S, sharing_routers

Look = Callable[..., Watched]
Keep = Callable[..., None]
CLIENTS = 14
"""Of each tenant: more than the slots of both workers."""


@pytest.fixture
def consoles(tmp_path: Path, redis_url: str) -> Iterator[list[str]]:
    """Two real routers under load: their addresses."""
    over = Event()
    with sharing_routers(tmp_path, ("router-0", "router-1"), redis_url) as (routers, _):
        urls = [router.url for router in routers]
        load = Thread(target=lambda: asyncio.run(loaded(urls, over)))
        load.start()
        try:
            yield urls
        finally:
            over.set()
            load.join()


async def loaded(urls: list[str], over: Event) -> None:
    """CLIENTS clients of a tenant at each router, each of which asks again at each answer, until it is over."""

    async def client(url: str, tenant: str) -> None:
        headers = {"x-tenant": tenant, "x-weir-deadline-ms": "20000"}
        body = {"model": MODEL, "prompt": "What is a weir?", "max_tokens": 60, "ignore_eos": True}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=WITHIN_S, trust_env=False) as client:
            while not over.is_set():
                if (await client.post("/v1/completions", json=body)).status_code != 200:
                    await asyncio.sleep(0.2)

    pairs = zip(urls, ("anna", "bela"), strict=True)
    await asyncio.gather(*(client(url, tenant) for url, tenant in pairs for _ in range(CLIENTS)))


def rows(page: Any, id: str) -> list[list[str]]:
    """The cells of a table, its row headers included."""
    found: list[list[str]] = page.eval_on_selector_all(
        f"#{id} tr", "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return found


# ---- against the fake


def test_a_router_that_is_alone_has_no_word_of_sharing(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    until(page, "document.querySelectorAll('.slot.taken').length > 3")
    assert page.locator("#sharing").is_hidden()


def test_one_of_several_shows_its_pool_its_leases_and_what_it_waits_for(look: Look, fake: Fake, keep: Keep) -> None:
    fake.sharing = shown()
    watched = look()
    page = watched.open(fake.url)
    page.wait_for_selector("#sharing:not([hidden])")
    assert "router-1" in page.locator("#sharing .lede").inner_text()
    pool = page.locator("#sharing-pools li").inner_text()
    for part in ("weir-sim", "2 routers", "0.1 s ago", "8 slots"):
        assert part in pool
    assert rows(page, "lease-rows") == [["worker-0", "up", "5 of 8", "3"], ["worker-1", "up", "3 of 8", "3"]]
    assert rows(page, "turn-rows") == [
        ["default", "12 (2 light)", "48,211", "211", "51,000"],
        ["batch", "0", "9,300", "–", "50,100"],
    ]
    keep(page, "sharing-fake")
    assert watched.faults == []


def test_a_lease_that_is_down_and_an_old_exchange_are_shown_and_said(look: Look, fake: Fake, keep: Keep) -> None:
    fake.sharing = shown()
    page = look().open(fake.url)
    page.wait_for_selector("#sharing:not([hidden])")
    fake.sharing["leases"][1] |= {"up": False, "borrowed": 0}
    fake.sharing["pools"][0] |= {"exchange_age_s": 3.4, "exchange_stale": True}
    page.wait_for_selector("#lease-rows tr.down")
    page.wait_for_selector("#sharing-pools li.down")
    assert rows(page, "lease-rows")[1] == ["worker-1", "✕ down", "0 of 8", "3"]
    assert "✕ no exchange for 3.4 s" in page.locator("#sharing-pools").inner_text()
    until(page, "document.getElementById('announcer').textContent.includes('1 worker lends no slots.')")
    keep(page, "sharing-down", whole=False)
    fake.sharing = None
    soon(page, page.locator("#sharing").is_hidden, "the router is alone again")


def test_the_classes_of_two_pools_are_told_apart_and_what_is_left_out_is_counted(look: Look, fake: Fake) -> None:
    fake.sharing = shown() | {"other_leases": 3, "other_pools": 1}
    (pool,) = fake.sharing["pools"]
    fake.sharing["pools"] = [pool, pool | {"name": "other", "classes": pool["classes"][:1]}]
    page = look().open(fake.url)
    page.wait_for_selector("#sharing:not([hidden])")
    assert [row[0] for row in rows(page, "turn-rows")] == ["weir-sim: default", "weir-sim: batch", "other: default"]
    assert page.locator("#sharing-more").inner_text() == "and 3 more workers and 1 more pool"


def test_its_tables_can_be_scrolled_with_the_keyboard_and_have_names(look: Look, fake: Fake) -> None:
    fake.sharing = shown()
    page = look().open(fake.url)
    page.wait_for_selector("#sharing:not([hidden])")
    for name in ("Slots that workers lend here", "What this router waits for"):
        region = page.get_by_role("region", name=name)
        region.focus()
        assert region.evaluate("one => one === document.activeElement")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_on_a_phone(look: Look, fake: Fake, keep: Keep, theme: str) -> None:
    fake.sharing = shown()
    for number, lease in enumerate(fake.sharing["leases"]):
        lease |= {"worker": f"ha-worker-{number}", "recalled": True}
    fake.sharing["pools"][0]["classes"][0] |= {"level": 353_999.0, "turn": 1_024_294.0}
    page = look(viewport=NARROW, color_scheme=theme).open(fake.url)
    page.wait_for_selector("#lease-rows tr")
    keep(page, f"sharing-phone-{theme}")
    page.locator("#sharing").screenshot(path=SCREENSHOTS / f"sharing-phone-{theme}-part.png")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    leases = page.get_by_role("region", name="Slots that workers lend here")
    assert leases.evaluate("one => one.scrollWidth <= one.clientWidth"), "its columns can be seen without scrolling"


# ---- two real routers


def test_two_real_routers_show_what_is_lent_to_each(look: Look, consoles: list[str], keep: Keep) -> None:
    for number, console in enumerate(consoles):
        watched = look(color_scheme=("light", "dark")[number])
        page = watched.open(console)
        page.wait_for_selector("#sharing:not([hidden])")
        until(page, "document.getElementById('sharing-pools').innerText.includes('2 routers')")
        until(page, "document.querySelectorAll('#lease-rows tr').length === 2")
        assert page.locator("#sharing-router").inner_text() == f"router-{number}"
        until(page, "document.querySelectorAll('#lease-rows tr:not(.down)').length === 2")
        until(page, "parseInt(document.querySelector('#turn-rows td').innerText) > 0")
        until(page, "[...document.querySelectorAll('.lent')].some((one) => parseInt(one.innerText) > 0)")
        page.wait_for_timeout(2000)
        keep(page, f"sharing-real-{number}")
        page.locator("#sharing").screenshot(path=SCREENSHOTS / f"sharing-real-{number}-part.png")
        assert [row[2].split(" of ")[1] for row in rows(page, "lease-rows")] == ["4", "4"]
        assert watched.faults == []
