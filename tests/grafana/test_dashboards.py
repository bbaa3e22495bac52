"""The committed dashboards are those that the code draws, and ask only for what the services export."""

from __future__ import annotations

import itertools
import re

import pytest

from grafana.build import stale
from grafana.model import COLUMNS, TAG
from tests.grafana.queries import (
    FROM_PROMETHEUS,
    JOBS,
    ROOT,
    dashboards,
    exported_by,
    panel_queries,
    panels,
    records,
    selections,
)

ASKED_FOR = sorted({(expr, *selection) for _, _, expr in panel_queries() for selection in selections(expr)})
every_panel = pytest.mark.parametrize(
    "panel", [pytest.param(panel, id=f"{file}: {panel['title']}") for file, panel in panels()]
)


def test_the_committed_files_are_what_the_code_draws():
    assert stale() == [], "run: python -m grafana.build"


@pytest.mark.parametrize(("query", "name", "job"), ASKED_FOR)
def test_a_query_asks_for_what_that_job_exports(query, name, job):
    if name in {rule["record"] for rule in records()}:
        return
    if job:
        assert job in JOBS, query
        assert name in exported_by(job) | FROM_PROMETHEUS, query
    else:
        assert name in FROM_PROMETHEUS, f"name the job that exports {name}: {query}"


def test_a_worker_that_several_routers_know_is_counted_once():
    """Each says whether it is healthy, and how many slots it has: a sum over the routers counts it as often."""
    asking = [expr for _, _, expr in panel_queries() if re.search(r'weir_worker_(healthy|slots)\{job="router"', expr)]
    assert len(asking) >= 4
    assert not [expr for expr in asking if re.search(r"sum \(weir_worker_(healthy|slots)\{job=.router", expr)]


@every_panel
def test_a_panel_asks_a_question_and_explains_itself(panel):
    assert panel["title"].endswith("?")
    assert len(panel["description"].split()) >= 8
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert all(target["legendFormat"] for target in panel["targets"])


@every_panel
def test_a_panel_that_goes_on_elsewhere_names_a_dashboard_that_exists(panel):
    known = {board["uid"] for board in dashboards().values()}
    for link in panel.get("links", []):
        assert link["url"].removeprefix("/d/").partition("?")[0] in known


@pytest.mark.parametrize("name", dashboards())
def test_the_titles_of_a_page_are_told_apart_and_its_rows_hold_panels(name):
    titles = [panel["title"] for panel in dashboards()[name]["panels"]]
    assert len(titles) == len(set(titles))
    kinds = [panel["type"] for panel in dashboards()[name]["panels"]]
    assert all((a, b) != ("row", "row") for a, b in itertools.pairwise([*kinds, "row"]))


@pytest.mark.parametrize("name", dashboards())
def test_panels_do_not_overlap_and_fit_the_page(name):
    places = [panel["gridPos"] for panel in dashboards()[name]["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < COLUMNS


@pytest.mark.parametrize("name", dashboards())
def test_a_page_links_to_the_others_and_takes_its_choices_along(name):
    (link,) = dashboards()[name]["links"]
    assert (link["type"], link["tags"]) == ("dashboards", [TAG])
    assert link["includeVars"]
    assert link["keepTime"]
    assert dashboards()[name]["tags"] == [TAG]


@pytest.mark.parametrize("name", dashboards())
def test_a_choice_is_asked_for_by_some_panel_and_no_panel_asks_for_another(name):
    board = dashboards()[name]
    queries = " ".join(expr for file, _, expr in panel_queries() if file == name)
    choices = {choice["name"] for choice in board["templating"]["list"]}
    asked = {word for word in ("tenant", "class", "instance") if f'"${word}"' in queries}
    assert choices == asked


def test_dashboards_have_names_of_their_own():
    uids = [board["uid"] for board in dashboards().values()]
    assert len(uids) == len(set(uids))
    assert all(len(uid) <= 40 for uid in uids)


@pytest.mark.parametrize("name", dashboards())
def test_each_page_of_the_documents_has_every_question_of_its_dashboard(name):
    page = (ROOT / "docs" / "dashboards" / name).with_suffix(".md").read_text(encoding="utf-8")
    asked = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")]
    titles = [panel["title"] for file, panel in panels() if file == name]
    assert [question for question in asked if question.endswith("?")] == titles
    rows = [panel["title"] for panel in dashboards()[name]["panels"] if panel["type"] == "row"]
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == rows
