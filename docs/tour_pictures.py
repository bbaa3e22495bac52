"""Take the pictures of the tour from a running stack: `python docs/tour_pictures.py [http://127.0.0.1:8000]`.

It does what a visitor does: presses buttons, turns switches, waits, looks. Needs playwright, Pillow and Debian's
chromium, and about four minutes. What it finds switched off it leaves switched on.
"""

from __future__ import annotations

import io
import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "tour"
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-proxy-server"]
WIDE = {"width": 1440, "height": 900}
SECONDS = 24
MOST_BYTES = 150_000
SETTLES_MS = 1200  # until what came into sight is drawn


class Visitor:
    """Somebody in front of the page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self) -> None:
        self.page.goto(f"{self.url}/console")
        self.page.wait_for_selector("#link[data-state=live]")
        self.page.wait_for_selector("#storm:not([hidden])")

    def storm(self, name: str, look: Callable[[], None], at_s: float) -> None:
        """Start it, look when it has gone on for so long, and wait for its end."""
        self.page.click(f"[data-scenario={name}]")
        self.page.eval_on_selector(
            "#slider-seconds",
            f"(slider) => {{ slider.value = {SECONDS}; slider.dispatchEvent(new Event('input')); }}",
        )
        self.page.click("#start")
        self.page.evaluate("window.scrollTo(0, 0)")
        self.wait(lambda running: running is not None and running["elapsed_s"] >= at_s)
        look()
        self.wait(lambda running: running is None)
        self.page.wait_for_selector("#start-form:not([hidden])")

    def switch(self, name: str, on: bool) -> None:
        switch = f"#policy-{name}"
        if self.page.get_attribute(switch, "aria-checked") != str(on).lower():
            self.page.click(switch)
        self.page.wait_for_selector(f"{switch}[aria-checked={str(on).lower()}]")

    def wait(self, condition: Callable[[dict[str, Any] | None], bool]) -> None:
        while True:
            with urllib.request.urlopen(f"{self.url}/console/storm", timeout=10) as answer:
                if condition(json.load(answer)["running"]):
                    return
            self.page.wait_for_timeout(250)

    def life(self) -> None:
        """Open that of the request, of those in the table, which has waited longest."""
        self.page.locator("#decision-table").scroll_into_view_if_needed()
        self.page.hover("#decision-table")
        column = "rows => rows.map((row) => parseInt(row.cells[5].innerText) || 0)"
        waited = self.page.eval_on_selector_all("#decision-rows tr", column)
        self.page.locator("button.open").nth(waited.index(max(waited))).click()
        self.page.wait_for_selector("#life[open] .timeline")

    def keep(self, name: str, selector: str | None = None, *, around_px: int = 14) -> None:
        """A picture of the window, or of one part of the page with a little of what is around it."""
        clip = self._box(selector, around_px) if selector else None
        image, out = Image.open(io.BytesIO(self.page.screenshot(clip=clip))).convert("RGB"), io.BytesIO()
        image.save(out, "WEBP", quality=82, method=6)
        if out.tell() > MOST_BYTES:
            raise SystemExit(f"{name} has {out.tell()} bytes, more than {MOST_BYTES}")
        (FOLDER / f"{name}.webp").write_bytes(out.getvalue())

    def _box(self, selector: str, around_px: int) -> Any:
        self.page.eval_on_selector(selector, "(part) => part.scrollIntoView({block: 'center'})")
        self.page.wait_for_timeout(SETTLES_MS)
        box = self.page.locator(selector).bounding_box()
        assert box is not None
        x, y = box["x"] - around_px, box["y"] - around_px
        return {"x": x, "y": y, "width": box["width"] + 2 * around_px, "height": box["height"] + 2 * around_px}


def tour(visitor: Visitor) -> None:
    keep, page, peak, end = visitor.keep, visitor.page, SECONDS * 0.5, SECONDS * 0.92

    def burst() -> None:
        keep("burst")
        visitor.life()
        keep("life", "#life", around_px=0)
        page.keyboard.press("Escape")

    for policy in ("admission", "fairness", "cancellation"):
        visitor.switch(policy, True)
    visitor.storm("steady", lambda: keep("steady"), peak)
    visitor.storm("burst", burst, peak)
    keep("burst-charts", "#charts")
    visitor.switch("admission", False)
    visitor.storm("burst", lambda: keep("burst-without-admission"), peak)
    keep("burst-without-admission-charts", "#charts")
    visitor.switch("admission", True)
    visitor.storm("noisy_neighbour", lambda: keep("neighbour", "#picture"), peak)
    visitor.switch("fairness", False)
    visitor.storm("noisy_neighbour", lambda: keep("neighbour-without-fairness", "#picture"), peak)
    visitor.switch("fairness", True)
    keep("runs", "#runs")
    page.emulate_media(color_scheme="dark")
    visitor.storm("burst", lambda: keep("burst-dark"), peak)
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="light")
    visitor.storm("burst", lambda: keep("phone"), end)


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        visitor = Visitor(browser.new_context(viewport=WIDE, color_scheme="light").new_page(), url)
        visitor.open()
        tour(visitor)
        browser.close()


if __name__ == "__main__":
    main()
