"""A browser that asks nobody but the page's own server, and keeps a book of all that it asks and complains about."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.real.browser.fake import Fake, playing

SCREENSHOTS = Path(__file__).parents[3] / "out" / "screenshots"
WITHIN_MS = 30_000  # a safety net: machines are shared, and slow at times
WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 390, "height": 844}
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-first-run", "--no-proxy-server",
)  # fmt: skip


def until(page: Any, expression: str) -> None:
    """Wait until it is so on the page. Asked from outside, since the page's own policy forbids it to evaluate text."""
    soon(page, lambda: page.evaluate(expression), expression)


def soon(page: Any, condition: Callable[[], Any], what: str) -> None:
    """Wait until it is so here, while the page goes on."""
    deadline = time.monotonic() + WITHIN_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_MS} ms: {what}"
        page.wait_for_timeout(50)


class Watched:
    """A page, what it asked for, and what it complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.asked: list[str] = []
        self.faults: list[str] = []
        page.set_default_timeout(WITHIN_MS)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.faults.append(f"{error}"))
        page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{message.type}: {message.text}")

    def open(self, url: str) -> Any:
        self.page.goto(f"{url}/console")
        self.page.wait_for_selector("#link[data-state=live]")
        return self.page

    def strangers(self, url: str) -> list[str]:
        return [asked for asked in self.asked if urlsplit(asked).netloc != urlsplit(url).netloc]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """For one file: Playwright keeps a loop running in this thread, in which no other test could run one of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def look(chromium: Any) -> Iterator[Callable[..., Watched]]:
    """Open a page: `look(viewport=NARROW, color_scheme="dark")`, as a fresh visitor."""
    contexts = []

    def new(**settings: Any) -> Watched:
        contexts.append(chromium.new_context(**{"viewport": WIDE, **settings}))
        return Watched(contexts[-1].new_page())

    yield new
    for context in contexts:
        context.close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    with playing() as fake:
        yield fake


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Any, str], None]:
    """Keep a picture of the page under out/screenshots, for people to look at."""

    def picture(page: Any, name: str, *, whole: bool = True) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)

    return picture
