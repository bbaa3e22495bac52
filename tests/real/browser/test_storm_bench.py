"""Storms and switches from the page, and what a visitor without a mouse, or without sight, can do with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.real.browser.conftest import NARROW, WIDE, Watched, soon, until
from tests.real.browser.fake import Fake

Look = Callable[..., Watched]
Keep = Callable[..., None]
MOST_STOPS = 120


def tab_to(page: Any, selector: str) -> None:
    """With the Tab key alone, as far as it takes."""
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"the Tab key never came to {selector}")


def test_a_storm_starts_is_seen_and_stops(look: Look, fake: Fake, keep: Keep) -> None:
    watched = look()
    page = watched.open(fake.url)
    page.click("[data-scenario=burst]")
    page.click("#start")
    page.wait_for_selector("#running:not([hidden])")
    until(page, "document.querySelectorAll('#watch li').length === 3")
    until(page, "Number(document.querySelector('[data-total=refused]').textContent.replaceAll(',', '')) > 100")
    keep(page, "storm-light")
    page.click("#stop")
    page.wait_for_selector("#start-form:not([hidden])")
    assert fake.storms.running is None
    page.wait_for_selector("#run-rows tr")
    page.wait_for_selector("#run-rows .fared")
    with page.expect_download() as download:
        page.click("#run-rows a")
    assert re.fullmatch(r"weir-burst-run\d+\.html|storm\.html", download.value.suggested_filename)
    assert watched.faults == []


def test_two_storms_of_a_kind_can_be_saved_side_by_side(look: Look, fake: Fake) -> None:
    for _ in range(2):
        fake.storms.start("burst", {"seconds": 5})
        fake.storms.stop()
    page = look().open(fake.url)
    page.wait_for_selector("#run-rows tr")
    newest = page.locator("#run-rows tr").first
    assert newest.locator("a").nth(1).get_attribute("href") == "/console/storm/report?run=run2&with=run1&save=1"
    assert page.locator("#run-rows tr").nth(1).locator("a").count() == 1


def test_a_storm_in_the_dark(look: Look, fake: Fake, keep: Keep) -> None:
    page = look(color_scheme="dark").open(fake.url)
    fake.storms.start("noisy_neighbour", {"seconds": 60, "intensity": 4})
    until(page, "document.querySelectorAll('.tenant.first').length === 1")
    until(page, "Number(document.querySelector('[data-total=refused]').textContent.replaceAll(',', '')) > 150")
    keep(page, "storm-dark")


def test_a_storm_that_somebody_else_started_can_be_seen_and_stopped(look: Look, fake: Fake) -> None:
    fake.storms.start("steady", {"seconds": 60})
    page = look(viewport=NARROW).open(fake.url)
    page.wait_for_selector("#storm-bar:not([hidden])")
    page.click("#storm-bar-stop")
    page.wait_for_selector("#storm-bar", state="hidden")
    assert fake.storms.running is None


def test_a_slider_sets_what_is_asked_for(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    page.click("[data-scenario=burst]")
    page.focus("#slider-intensity")
    page.keyboard.press("End")
    assert page.locator("output[for=slider-intensity]").inner_text() == "20 × capacity"
    page.click("#start")
    page.wait_for_selector("#running:not([hidden])")
    assert fake.storms.running is not None
    assert fake.storms.running["sliders"]["intensity"] == 20


def test_a_scenario_that_is_not_to_be_had_says_why(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    page.click("[data-scenario=redis_gone]")
    assert page.locator("#start").is_disabled()
    assert page.locator("#why-not").inner_text() == "REDIS_URL is not set"


def test_a_refused_start_says_why(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    page.click("[data-scenario=steady]")
    page.route(
        "**/console/storm", lambda route: route.fulfill(status=409, json={"error": {"message": "a storm is running"}})
    )
    page.click("#start")
    until(page, "document.getElementById('bench-problem').textContent === 'a storm is running'")


def test_admission_can_be_switched_off_and_the_page_says_what_follows(look: Look, fake: Fake, keep: Keep) -> None:
    page = look().open(fake.url)
    page.click("#policy-admission")
    page.wait_for_selector("#policy-admission[aria-checked=false]")
    assert fake.world.policy["admission"] is False
    fake.storms.start("burst", {"seconds": 60, "intensity": 6})
    until(page, "document.getElementById('reading').textContent.startsWith('Admission is off.')")
    until(page, "document.getElementById('reading').textContent.includes('Only')")
    assert (
        page.locator("#door-lede").inner_text()
        == "Admission is off: every request that fits into the queue is admitted."
    )
    keep(page, "storm-without-admission")
    page.click("#policy-admission")
    page.wait_for_selector("#policy-admission[aria-checked=true]")
    until(page, "document.getElementById('door-lede').textContent.startsWith('Admission decides')")


def test_without_a_bench_there_is_no_panel(look: Look, fake: Fake) -> None:
    fake.hello |= {"storm": False, "policy": False}
    page = look().open(fake.url)
    page.wait_for_selector(".tenant")
    assert page.locator("#bench").is_hidden()


def test_switches_without_a_bench_have_no_line_that_parts_them_from_it(look: Look, fake: Fake) -> None:
    fake.hello |= {"storm": False}
    page = look().open(fake.url)
    page.wait_for_selector("#policies:not([hidden])")
    assert page.locator("#storm").is_hidden()
    of = page.locator("#policies").evaluate("one => [getComputedStyle(one).borderLeftWidth, one.offsetLeft]")
    assert of == ["0px", page.locator("#bench").evaluate("one => one.offsetLeft")]


def test_with_the_keyboard_alone_a_storm_is_started_and_a_life_opened_and_closed(
    look: Look, fake: Fake, keep: Keep
) -> None:
    page = look().open(fake.url)
    page.wait_for_selector(".slot.taken")
    tab_to(page, "[data-scenario=steady]")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.scenario") == "burst"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab_to(page, "#start")
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'stop'")
    tab_to(page, ".slot.taken")
    page.keyboard.press("Enter")
    page.wait_for_selector("#life[open] .timeline")
    keep(page, "life-of-a-slot", whole=False)
    page.keyboard.press("Escape")
    page.wait_for_selector("#life", state="hidden")
    assert page.evaluate("document.activeElement.classList.contains('slot')")
    tab_to(page, "button.open")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#life[open] .events li")
    assert page.locator("#life code").inner_text() in name
    keep(page, "life-of-a-decision", whole=False)
    seq = fake.world.seq
    soon(page, lambda: fake.world.seq > seq + 12, "newer decisions have come meanwhile")
    page.keyboard.press("Escape")
    page.wait_for_selector("#life", state="hidden")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name


def test_a_mark_that_falls_opens_its_life(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    until(page, "Number(document.querySelector('[data-total=served]').textContent) > 20")
    page.click("#pause")
    box = page.locator("#door-fall").bounding_box()
    for down in range(20, int(box["height"]), 12):
        page.mouse.click(box["x"] + box["width"] / 6, box["y"] + down)
        if page.locator("#life[open]").count():
            break
    page.wait_for_selector("#life[open] .events li")


def test_a_request_that_is_forgotten_is_said_to_be(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    page.wait_for_selector("button.open")
    fake.world.lives.clear()
    page.hover("#decision-table")
    fake.world.rates.clear()
    page.click("button.open")
    until(page, "document.getElementById('life-body').textContent.includes('no longer remembered')")


def test_changes_that_matter_are_said_and_not_too_often(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    page.evaluate(
        """() => { window.said = []; new MutationObserver(() =>
            window.said.push([performance.now(), document.getElementById('announcer').textContent])
        ).observe(document.getElementById('announcer'), {childList: true}); }"""
    )
    fake.world.healthy[1] = False
    until(page, "window.said.some(([, words]) => words.includes('1 worker does not respond'))")
    fake.world.healthy[1] = True
    until(page, "window.said.some(([, words]) => words.includes('All workers respond'))")
    times = [at_ms for at_ms, _ in page.evaluate("window.said")]
    assert all(later - earlier > 3500 for earlier, later in pairwise(times))


@pytest.mark.parametrize(("theme", "viewport"), [("light", WIDE), ("dark", WIDE), ("light", NARROW)])
def test_the_checker_of_accessibility_finds_nothing(
    look: Look, fake: Fake, theme: str, viewport: dict[str, int]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = look(color_scheme=theme, viewport=viewport).open(fake.url)
    until(page, "document.querySelectorAll('#decision-rows tr').length === 10")
    page.wait_for_selector(".slot.taken")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert found(axe, page) == []
    page.click("#policy-admission")
    fake.storms.start("burst", {"seconds": 60})
    page.wait_for_selector("#running:not([hidden])")
    page.wait_for_selector("#door-lede.without")
    assert found(axe, page) == []
    fake.storms.stop()
    page.wait_for_selector("#run-rows .fared")
    assert found(axe, page) == []
    page.click("button.open >> nth=0")
    page.wait_for_selector("#life[open] .timeline")
    assert found(axe, page) == []


def found(axe: Any, page: Any) -> list[str]:
    """Whatever it finds, of any weight."""
    faults = axe.Axe().run(page).response["violations"]
    return [f"{one['impact']} {one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}" for one in faults]
