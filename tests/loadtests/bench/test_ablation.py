"""A refinement that is left out comes back, and a loss that every seed has is told as one. In virtual time."""

from __future__ import annotations

import pytest

from loadtests.bench import ablation
from loadtests.bench.ablation import changes, compared, measure, ranked, row
from loadtests.bench.ablation_plays import Found, Options, scenarios, shortened
from loadtests.bench.refinements import REFINEMENTS, Refinement
from loadtests.report.result import markdown
from services.core.estimator import Estimator
from tests.pythoncore import python_core

SHORT = Options(seeds=2, offers=10, scenario=("at_capacity",))


def refused_all(self: Estimator, now: float) -> float:
    return 1e6


NONE = Refinement("nothing", "the same")
BLOCKED = Refinement("a queue", "none", patches=((Estimator, "next_slot_s", refused_all),))


@pytest.mark.parametrize("refinement", REFINEMENTS, ids=lambda each: each.name)
def test_a_refinement_that_was_left_out_comes_back(refinement: Refinement) -> None:
    before = [getattr(where, name) for where, name, _ in refinement.patches]
    assert refinement.patches or refinement.settings
    with refinement.left_out():
        assert [getattr(where, name) for where, name, _ in refinement.patches] == [
            value for _, _, value in refinement.patches
        ]
    assert [getattr(where, name) for where, name, _ in refinement.patches] == before


@python_core
def test_what_changes_nothing_earns_nothing_and_what_every_seed_needs_earns_its_place() -> None:
    base: dict[str, Found] = {}
    same = compared(NONE, SHORT, base)
    assert row(NONE, *same)[-1] == "no"
    assert not any(one.worse for one in changes(same[0].played, same[1].played))
    with_it, without = compared(BLOCKED, SHORT, base)
    assert row(BLOCKED, with_it, without)[-1].startswith("yes; ")
    assert ranked(with_it.played, without.played)[0].where == "at_capacity"


def test_a_bound_that_breaks_is_named() -> None:
    played = compared(NONE, SHORT, {})[0].played
    verdict = row(NONE, Found(played, {"a": True, "b": False}), Found(played, {"a": False, "b": False}))[-1]
    assert verdict == "yes; breaks: a"


def test_a_loss_that_some_seed_does_not_have_is_unclear() -> None:
    seed = {"goodput": 0.9, "dropped": 0.0, "latency_p95_s": 1.0}
    base = Found({"here": [seed, seed]}, {})
    found = Found({"here": [{**seed, "goodput": 0.5}, {**seed, "goodput": 0.91}]}, {})
    assert row(NONE, base, found)[-1] == "unclear: goodput 0.9 to 0.705, not with every seed or with one only"


@python_core
def test_one_that_has_shown_its_worth_is_not_played_on() -> None:
    two = Options(seeds=2, offers=10, scenario=("at_capacity", "half"))
    assert {where.split()[0] for where in compared(BLOCKED, two, {})[0].played} == {"at_capacity"}
    assert len(compared(NONE, two, {})[0].played) == 2


def test_the_page_has_a_row_for_each_refinement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "REFINEMENTS", (NONE, BLOCKED))
    page = markdown(measure(SHORT, lambda word: None), command="", machine="a machine")
    assert "| nothing | the same | at_capacity |" in page
    assert "| a queue | none | at_capacity |" in page


def test_only_a_run_in_which_nothing_changes_is_shortened() -> None:
    played = dict(scenarios(Options(scenario=("at_capacity", "burst", "outage"))))
    assert shortened(played["at_capacity"], 10).duration_s < played["at_capacity"].duration_s
    assert all(shortened(played[name], 10) is played[name] for name in ("burst", "outage"))
