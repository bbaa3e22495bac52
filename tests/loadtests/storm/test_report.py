"""The report is one file: whole, without a script, without another file, whatever the run was like."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from loadtests.storm.plots import Chart, Line, draw, nice_top
from loadtests.storm.report import STYLE, report
from services.contracts.storm import PolicySwitches, Run
from tests.loadtests.storm.made_up import a_run

VOID = {"meta", "path", "line", "rect", "circle"}
OFF = PolicySwitches(admission=False, fairness=True, cancellation=False)


class Reader(HTMLParser):
    """What stands in a page: tags, attributes, and whether every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


EMPTY = a_run(series=[], tenants=[], sent=0, on_time=0, refused=0, policy=None, capacity_per_s=None, p50_ms=None,
              p95_ms=None, wasted_s=None, wasted_share=None, goodput_share=None, answered_share=None, lasted_s=0.0,
              ended="failed", why="no <worker> announces", refused_by_code={}, router_counted={}, marks=[])  # fmt: skip
PAGES = {
    "one": (a_run(), None),
    "two": (a_run(), a_run("c3d4", policy=OFF)),
    "empty": (EMPTY, None),
    "stopped": (a_run(series=a_run().series[:1], lasted_s=0.4, ended="stopped"), None),
}
every_page = pytest.mark.parametrize(("first", "second"), PAGES.values(), ids=list(PAGES))


@every_page
def test_a_report_needs_no_other_file_and_no_script(first: Run, second: Run | None):
    page = report(first, second)
    read = Reader(page)
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(read.tags)
    for _, name, value in read.attributes:
        assert name not in ("src", "href", "srcset", "action")
        assert not name.startswith("on")
        assert "://" not in value
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"url\(|@import|@font-face", page)


@every_page
def test_a_report_has_a_title_a_language_and_names_its_pictures(first: Run, second: Run | None):
    read = Reader(report(first, second))
    assert ("html", "lang", "en") in read.attributes
    assert "title" in read.tags
    pictures = [value for tag, name, value in read.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(pictures) == read.tags.count("svg")
    assert all(pictures)


def test_what_a_tenant_is_called_is_text_and_no_markup():
    page = report(a_run())
    assert "<b>ben" not in page
    assert "&lt;b&gt;ben&lt;/b&gt;" in page


def test_it_says_what_the_run_came_to():
    text = Reader(report(a_run())).text
    for said in ("230", "150 (65.2 %)", "26.6 answers a second", "510 ms, 902 ms; deadline 2000 ms", "all on",
                 "deadline_infeasible", "served 150, yield 10", "the burst", "Who is answered on time?"):  # fmt: skip
        assert said in text


def test_two_runs_stand_side_by_side_on_the_same_axes():
    slow = a_run("c3d4", policy=OFF, series=[])
    slow.series = a_run().series
    for one in slow.series:
        one.p95_ms = 9000.0
    page = report(a_run(), slow)
    text = Reader(page).text
    assert "A: run a1b2, policies: all on" in text
    assert "B: run c3d4, policies: admission, cancellation off" in text
    latency = page[page.index("Are answers on time?") : page.index("Is the workers")]
    assert latency.count(">10000</text>") == 2  # both reach as high as the higher one


def test_what_was_not_told_is_left_out_rather_than_drawn_as_zero():
    text = Reader(report(a_run(series=[]))).text
    assert "How long is the queue?" not in text
    assert "unknown" in Reader(report(EMPTY)).text


def test_a_value_that_is_not_there_is_a_gap_in_its_line():
    drawn = draw(Chart("a", "ms", (Line("x", [1.0, None, 2.0, 3.0], "good"),)))
    path = re.search(r'd="(M[^"]+)" class="line good"', drawn)
    assert path is not None
    assert (path[1].count("M"), path[1].count("L"), path[1].count("0h2")) == (2, 1, 2)  # one stands alone, and is seen


def test_paper_dark_and_light_each_have_every_colour():
    names = set(re.findall(r"var\((--[a-z]+)\)", STYLE))
    for block in (r":root\{([^}]*)\}", r"dark\)\{:root\{([^}]*)\}", r"print\)?\{:root\{([^}]*)\}"):
        found = re.search(block, STYLE)
        assert found is not None
        assert names <= set(re.findall(r"(--[a-z]+):", found[1]))


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.3, 0.5), (1, 1), (1.01, 2), (230, 250), (999, 1000), (float("inf"), 1), (-1, 1)]
)
def test_an_axis_ends_with_a_round_number(value: float, top: float):
    assert nice_top(value) == pytest.approx(top)
