"""A run is judged where it ends, and its summary says what happened: nothing left out, nothing invented."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("gevent", reason="Locust is not installed (make load installs it)")

from loadtests.runs.people.playing import Trouble, played
from loadtests.runs.people.watching import Sample
from loadtests.scenarios.people import Group, Scenario, Stage
from loadtests.users import trouble
from loadtests.users.lateness import Lateness
from loadtests.users.run import Run
from loadtests.users.summary import afterwards, as_dict, lines, onto_page, text, write
from loadtests.users.verdict import Kind, Verdict, failed

PEOPLE = Group("people", 1000, 8, (0, 1), {"ask": 1, "stream": 1})
OTHERS = Group("others", 4000, 8, (0, 1), {"chat": 1})
STAGES = (Stage("before", 10, {"people": 1}, 1), Stage("after", 10, {"people": 1, "others": 1}, 1))
SERVED, CUT, REFUSED = Verdict(Kind.SERVED), Verdict(Kind.SERVED, "degraded"), Verdict(Kind.REFUSED, "yield")
LOST = failed("504 deadline_exceeded")


def a_run() -> Run:
    scenario = Scenario("odd", "Does <it> hold?", "Some ask.", ("The times.",), (PEOPLE, OTHERS), STAGES)
    return Run(scenario, trouble.Trouble([]), began=100.0)


def test_a_request_belongs_to_the_stage_in_which_it_began():
    run = a_run()
    for began in (100.0, 109.9, 110.0, 125.0):
        run.settle(PEOPLE, "/ask", SERVED, began, 500)
    assert [(line.stage, line.requests) for line in lines(run)] == [("before", 2), ("after", 2)]


def test_a_line_tells_answers_from_all_else_and_their_times_are_answers_alone():
    run = a_run()
    for verdict, took_ms in ((SERVED, 100), (CUT, 300), (REFUSED, 2), (failed("500"), 7)):
        run.settle(PEOPLE, "chat stream", verdict, 101.0, took_ms)
    run.ledger.first_token("before", "people", 33)
    (line,) = lines(run)
    assert (line.served, line.degraded, line.refused, line.failed, line.lost) == (2, 1, 1, 1, 0)
    assert (line.p50_ms, line.p95_ms, line.refused_p50_ms, line.first_p50_ms) == (100, 300, 2, 33)


def test_an_answer_after_its_groups_deadline_is_late_and_another_group_may_have_more_time():
    run = a_run()
    assert str(run.settle(PEOPLE, "chat", SERVED, 101.0, 1300)) == "failed: late"
    assert run.settle(OTHERS, "chat", SERVED, 101.0, 1300) == SERVED


def test_what_the_client_itself_was_away_is_no_lateness_of_the_answer():
    run = a_run()
    run.lateness.note(102.0, 0.4)
    assert run.settle(PEOPLE, "chat", SERVED, 101.0, 1500) == SERVED
    assert str(run.settle(PEOPLE, "chat", SERVED, 103.0, 1500)) == "failed: late"
    assert {times.percentile_ms(1) for _, times in run.ledger.rows()} == {1500}, "the time itself is told as it was"


def test_away_is_only_what_lay_within_the_request():
    lateness = Lateness()
    for at, late_s in ((10.0, 0.5), (20.0, 2.0), (30.0, 0.001)):
        lateness.note(at, late_s)
    spans = [(9.75, 40.0), (11.0, 17.0), (19.0, 19.5), (21.0, 40.0)]
    assert [lateness.between(*span) for span in spans] == [2.25, 0.0, 0.5, 0.0]
    assert (lateness.total_s, lateness.worst_s) == (2.5, 2.0)


def test_a_loss_is_excused_while_something_was_broken_and_a_failure_before_and_after():
    run = a_run()
    run.trouble.windows = [(105.0, 108.0)]
    kinds = [run.settle(PEOPLE, "chat", LOST, began, 900).kind for began in (101.0, 104.5, 107.5, 108.5)]
    assert kinds == [Kind.FAILED, Kind.LOST, Kind.LOST, Kind.FAILED]


def test_the_time_until_all_is_well_again_counts_from_the_end_of_the_trouble():
    run = a_run()
    run.trouble.windows = [(102.0, 104.0)]
    for began, verdict in ((103.0, REFUSED), (105.5, REFUSED), (107.2, SERVED), (109.0, SERVED)):
        run.settle(PEOPLE, "chat", verdict, began, 10)
    assert afterwards(run) == [1.5]
    run.trouble.windows = [(102.0, 106.5)]
    assert afterwards(run) == [None]


def test_the_text_asks_the_question_and_has_every_outcome():
    run = a_run()
    for verdict in (SERVED, CUT, REFUSED, failed("500 internal_error")):
        run.settle(PEOPLE, "/ask", verdict, 101.0, 10)
    told = text(run)
    for said in (
        "Does <it> hold?",
        "Some ask.",
        "- The times.",
        "served: degraded",
        "refused: yield",
        "500 internal_error",
    ):
        assert said in told


def test_a_run_without_a_request_says_so():
    assert "No request was made." in text(a_run())


def test_the_json_adds_up(tmp_path):
    run = a_run()
    for verdict in (SERVED, SERVED, CUT, REFUSED, LOST):
        run.settle(PEOPLE, "/ask", verdict, 101.0, 10)
    write(run, "http://127.0.0.1:8000", tmp_path / "out")
    told = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert told == json.loads(json.dumps(as_dict(run, "http://127.0.0.1:8000") | {"seconds": told["seconds"]}))
    kinds = ("served", "refused", "left", "lost", "failed")
    assert told["requests"] == sum(told[kind] for kind in kinds) == sum(row["count"] for row in told["outcomes"]) == 5
    assert sum(second[kind] for second in told["by_second"] for kind in kinds) == 5
    assert (tmp_path / "out" / "summary.txt").read_text(encoding="utf-8").startswith("odd: Does <it> hold?")


def test_the_summary_stands_on_locusts_page_as_text():
    run = a_run()
    run.settle(PEOPLE, "/ask", SERVED, 101.0, 10)
    page = onto_page('<body><div id="root"></div></body>', run)
    assert "Does &lt;it&gt; hold?" in page
    assert page.index("</section>") < page.index('<div id="root">')
    assert onto_page("<p>another page</p>", run) == "<p>another page</p>"


def test_the_json_has_what_the_published_page_needs():
    run = a_run()
    for verdict, took_ms in ((SERVED, 100), (CUT, 300), (REFUSED, 2)):
        run.settle(PEOPLE, "/ask", verdict, 101.0, took_ms)
    run.trouble.windows = [(102.0, 104.0)]
    told = played(json.loads(json.dumps(as_dict(run, "http://127.0.0.1:8000"))), [Sample(1.0)], "a machine")
    assert (told.scenario, told.users, told.requests, told.served, told.degraded) == ("odd", 2, 3, 2, 1)
    assert (told.p50_ms, told.p95_ms, told.p99_ms) == (100, 300, 300)
    assert told.broken == (Trouble(2.0, 4.0),)
    assert told.began_at == run.began_at
