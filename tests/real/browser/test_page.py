"""The page as its visitors meet it, in a real browser, against a server that plays the router's part."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.real.browser.conftest import NARROW, WIDE, Watched, soon, until
from tests.real.browser.fake import Fake

Look = Callable[..., Watched]
Keep = Callable[..., None]


def number(page: Any, selector: str) -> float:
    """What the page shows there; -1 while it shows none."""
    text = page.locator(selector).first.inner_text().replace(",", "")
    found = re.search(r"[\d.]+", text)
    return float(found[0]) if found else -1.0


def test_the_page_loads_without_a_fault_and_asks_nobody_else(look: Look, fake: Fake, keep: Keep) -> None:
    watched = look()
    page = watched.open(fake.url)
    until(page, "document.querySelectorAll('.tenant').length === 4")
    until(page, "document.querySelectorAll('.slot.taken').length > 3")
    until(page, "document.querySelectorAll('#decision-rows tr').length === 10")
    page.wait_for_timeout(500)
    keep(page, "light")
    assert watched.strangers(fake.url) == []
    assert watched.faults == []
    assert page.locator(".uplot canvas").count() == 4


def test_what_is_counted_rises_with_what_is_decided(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    until(page, "Number(document.querySelector('[data-total=served]').textContent.replaceAll(',', '')) > 20")
    before = number(page, "[data-total=admitted]")
    until(page, f"Number(document.querySelector('[data-total=admitted]').textContent.replaceAll(',', '')) > {before}")
    assert before > 0
    assert number(page, "#goodput") > 0


def test_each_number_of_the_four_questions_has_a_unit(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    questions = page.locator(".answers dl > div")
    assert questions.count() == 4
    for n in range(4):
        assert questions.nth(n).locator("dt").inner_text().endswith("?")
        assert questions.nth(n).locator(".unit").inner_text() in ("%", "/s", "tokens/s")


def test_a_router_that_goes_away_is_told_and_found_again(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    fake.closed = True
    page.wait_for_selector("#link[data-state=lost]")
    until(page, "document.getElementById('link-text').textContent.includes('64 viewers')")
    fake.closed = False
    page.wait_for_selector("#link[data-state=live]")
    until(page, "document.getElementById('announcer').textContent.includes('restored')")


def test_a_picture_that_is_old_says_so(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    fake.silent = True
    page.wait_for_selector("#link[data-state=stale]")
    assert "this view is of" in page.locator("#link-text").inner_text()
    fake.silent = False
    page.wait_for_selector("#link[data-state=live]")


def test_slow_frames_are_no_fault(look: Look, fake: Fake) -> None:
    fake.hello["frame_ms"] = 1500
    page = look().open(fake.url)
    until(page, "Number(document.querySelector('[data-total=served]').textContent) > 3")
    assert page.locator("#link").get_attribute("data-state") == "live"


def test_a_paused_picture_stands_still_until_it_is_told_to_go_on(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    until(page, "Number(document.querySelector('[data-total=served]').textContent) > 3")
    page.click("#pause")
    page.wait_for_selector("#link[data-state=paused]")
    before, seq = page.locator(".picture").inner_text(), fake.world.seq
    soon(page, lambda: fake.world.seq > seq + 5, "five more frames")
    assert page.locator(".picture").inner_text() == before
    page.click("#pause")
    page.wait_for_selector("#link[data-state=live]")
    until(page, f"document.querySelector('.picture').innerText !== {before!r}")


def test_a_listener_with_a_token_asks_for_it_and_keeps_it_nowhere(look: Look, fake: Fake) -> None:
    fake.token = "sesame"
    watched = look()
    watched.page.goto(f"{fake.url}/console")
    watched.page.wait_for_selector("#token-form:not([hidden])")
    watched.page.fill("#token", "sesam")
    watched.page.keyboard.press("Enter")
    until(watched.page, "document.getElementById('link-text').textContent === 'That token is rejected'")
    watched.page.fill("#token", "sesame")
    watched.page.keyboard.press("Enter")
    watched.page.wait_for_selector("#link[data-state=live]")
    kept = watched.page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
    )
    assert "sesame" not in kept
    assert not any("sesame" in asked for asked in watched.asked)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_follows_the_system_and_the_button(look: Look, fake: Fake, keep: Keep, theme: str) -> None:
    page = look(color_scheme=theme).open(fake.url)
    until(page, "document.querySelectorAll('.slot.taken').length > 3")
    page.wait_for_timeout(1500)
    keep(page, f"{theme}-system")
    dark = "getComputedStyle(document.body).backgroundColor"
    of_system = page.evaluate(dark)
    for name in ("light", "dark"):
        page.click("#theme")
        assert page.locator("#theme-name").inner_text() == name
        assert (page.evaluate(dark) == of_system) is (name == theme)
    page.reload()
    page.wait_for_selector("#link[data-state=live]")
    assert page.locator("#theme-name").inner_text() == "dark"


@pytest.mark.parametrize("width", [390, 320, 768])
def test_nothing_is_wider_than_a_phone(look: Look, fake: Fake, keep: Keep, width: int) -> None:
    page = look(viewport={**NARROW, "width": width}).open(fake.url)
    until(page, "document.querySelectorAll('.slot.taken').length > 3")
    until(page, "document.querySelectorAll('#decision-rows tr').length === 10")
    keep(page, f"phone-{width}")
    wide = page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(one => one.tagName === 'svg' || !one.closest('svg'))
            .filter(one => !one.closest('.scroll, .uplot, .visually-hidden, .theme-said, .skip'))
            .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
            .map(one => one.tagName + '.' + one.className)"""
    )
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert wide == []


def test_tenants_come_while_the_chart_of_their_lines_is_out_of_sight(look: Look, fake: Fake) -> None:
    watched = look(viewport=NARROW)
    page = watched.open(fake.url)
    chart = page.locator(".chart").nth(3)
    chart.scroll_into_view_if_needed()
    until(page, "/[0-9]/.test(document.querySelectorAll('.chart')[3].querySelector('.legend-list b').textContent)")
    page.evaluate("scrollTo(0, 0)")
    until(page, "document.querySelectorAll('.chart')[3].getBoundingClientRect().top > innerHeight + 200")
    fake.world.rates |= {"late": 5.0, "later": 5.0}
    until(page, "document.querySelectorAll('.tenant').length === 6")
    chart.scroll_into_view_if_needed()
    chart.locator("li").nth(5).wait_for()
    assert watched.faults == []


def test_who_asked_for_less_motion_gets_a_picture_a_second(look: Look, fake: Fake) -> None:
    page = look(reduced_motion="reduce").open(fake.url)
    until(page, "document.querySelectorAll('.slot.taken').length > 3")
    page.evaluate(
        """() => { window.drawn = 0; const draw = CanvasRenderingContext2D.prototype.clearRect;
            CanvasRenderingContext2D.prototype.clearRect = function (...box) {
                if (this.canvas.id === 'door-fall') window.drawn++;
                return draw.apply(this, box); }; }"""
    )
    seq = fake.world.seq
    soon(page, lambda: fake.world.seq > seq + 15, "fifteen more frames")
    assert 1 <= page.evaluate("window.drawn") <= 15


def test_a_hundred_kinds_of_names_break_nothing(look: Look, fake: Fake, keep: Keep) -> None:
    names = ["<b>bold</b>", "x" * 64, "Ωmega ünïcode", "a b", "__proto__", "constructor"]
    fake.world.rates |= dict.fromkeys(names, 2.0)
    watched = look(viewport=WIDE)
    page = watched.open(fake.url)
    until(page, "document.querySelectorAll('.tenant').length === 10")
    keep(page, "names", whole=False)
    shown = page.locator(".tenant .id").all_inner_texts()
    assert set(names) <= set(shown)
    assert watched.faults == []


def test_each_chart_can_be_read_as_a_table(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    charts = page.locator(".chart")
    assert charts.count() == 4
    for n in range(4):
        assert charts.nth(n).locator("h2").inner_text().endswith("?")
        charts.nth(n).locator("summary").click()
        charts.nth(n).locator("tbody tr").first.wait_for()
        assert charts.nth(n).locator("tbody tr").first.locator("th").inner_text() == "0"
    until(
        page,
        "Number(document.querySelectorAll('.chart')[1].querySelectorAll('td')[1].textContent.replaceAll(',', '')) > 0",
    )


def test_a_page_that_nobody_sees_lets_go_of_its_stream(look: Look, fake: Fake) -> None:
    page = look().open(fake.url)
    assert fake.viewers == 1
    turn = """(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange')); }"""
    page.evaluate(turn, True)
    soon(page, lambda: fake.viewers == 0, "it has let go")
    page.evaluate(turn, False)
    soon(page, lambda: fake.viewers == 1, "it looks again")
    page.wait_for_selector("#link[data-state=live]")
