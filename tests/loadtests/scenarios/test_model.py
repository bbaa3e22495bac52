"""Scenario files: what is read, and how every fault of one is told at once."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from loadtests.scenarios.distributions import Distribution
from loadtests.scenarios.model import load, parse
from services.cli.errors import LabError

GOOD: dict[str, Any] = {
    "title": "good",
    "duration_s": 30,
    "workers": [{"kind": "slots", "slots": 4, "prefill_tokens_per_s": 10_000, "s_per_token": 0.01}],
    "tenants": [{"name": "a", "arrivals": {"kind": "poisson", "load": 2}}],
}


def faults(changes: dict[str, Any]) -> list[str]:
    with pytest.raises(LabError) as caught:
        parse({**GOOD, **changes})
    return list(caught.value.notes)


def test_all_faults_of_a_file_are_told_at_once_with_their_places() -> None:
    told = faults(
        {
            "duration_s": -3,
            "workers": [{"kind": "slots", "slots": 0, "prefil": 3, "s_per_token": 1}],
            "tenants": [
                {"name": "a b", "arrivals": {"kind": "gamma", "load": 2, "cv": -1}, "deadline_s": "soon"},
                {"name": "b", "arrivals": {"kind": "trace", "path": "nowhere.csv", "format": "azure"}},
                {"name": "c", "arrivals": {"kind": "sometimes"}, "max_tokens": 0},
                {
                    "name": "d",
                    "arrivals": {"kind": "poisson"},
                    "prompt_tokens": {"kind": "uniform", "low": 9, "high": 1},
                },
            ],
            "policies": ["weird"],
        }
    )
    places = [fault.split(":")[0] for fault in told]
    assert places == [
        "duration_s",
        "workers[0].slots",
        "workers[0].prefill_tokens_per_s",
        "workers[0].prefil",
        "tenants[0].name",
        "tenants[0].arrivals.cv",
        "tenants[0].deadline_s",
        "tenants[1].arrivals.path",
        "tenants[2].arrivals",
        "tenants[2].max_tokens",
        "tenants[3].arrivals",
        "tenants[3].prompt_tokens",
        "policies[0].policy",
    ]
    assert "tenants[3].arrivals: needs either load or rate_per_s" in told
    assert "tenants[3].prompt_tokens: low (9) is above high (1)" in told
    assert "tenants[1].arrivals.path: there is no file nowhere.csv" in told


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"duration_s": 6}, "warm_up_s and cool_down_s leave nothing of duration_s (6)"),
        ({"tenants": GOOD["tenants"] * 2}, "tenants: a is there twice"),
        ({"tenants": [GOOD["tenants"][0] | {"class": "gold"}]}, "a is of class gold, which is not under classes"),
        ({"sweep": {"loads": [1], "tenants": ["b"]}}, "sweep.tenants: there is no tenant b"),
        ({"policies": ["fifo", "fifo"]}, "policies: fifo is there twice"),
        ({"seed": 0.5}, "seed:"),
        ({"bogus": 1}, "bogus: Extra inputs are not permitted"),
        ({"duration_s": float("inf")}, "duration_s:"),
        ({"tenants": [GOOD["tenants"][0] | {"retries": {"impatient": 0.3}}]}, "impatient and repeats need attempts"),
        ({"tenants": [GOOD["tenants"][0] | {"retries": {"repeats": True}}]}, "impatient and repeats need attempts"),
    ],
)
def test_parts_that_contradict_each_other_are_faults(changes: dict[str, Any], says: str) -> None:
    assert any(says in fault for fault in faults(changes))


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_what_is_no_mapping_is_no_scenario(raw: Any) -> None:
    with pytest.raises(LabError, match="has a fault"):
        parse(raw)


def test_a_file_is_found_by_path_and_its_trace_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("req_time,client,prompt_len,output_len\n0,a,1,1\n")
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
title: mine
duration_s: 20
workers: [{kind: slots, slots: 2, prefill_tokens_per_s: 1000, s_per_token: 0.01}]
tenants: [{name: a, arrivals: {kind: trace, path: t.csv, format: vtc}}]
"""
    )
    (group,) = load(path).tenants
    assert group.arrivals.path == tmp_path / "t.csv"  # type: ignore[union-attr]


def test_what_is_not_there_or_not_yaml_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"There is no scenario nonsense\."):
        load("nonsense")
    path = tmp_path / "bad.yaml"
    path.write_text("a: [b")
    with pytest.raises(LabError, match="is not YAML"):
        load(path)


def test_policies_are_names_or_names_with_settings() -> None:
    chosen = [{"policy": "weir", "label": "weir, no ladder", "max_level": 0}, "vtc"]
    first, second = parse({**GOOD, "policies": chosen}).policies
    assert (first.name, first.policy, first.max_level) == ("weir, no ladder", "weir", 0)
    assert second.name == "vtc"


# ---- distributions


def drawn(given: Any, count: int = 20_000) -> list[float]:
    distribution: Any = TypeAdapter(Distribution).validate_python(given)
    sample = distribution.sampler(random.Random(1))
    return [sample() for _ in range(count)]


def test_a_bare_number_is_a_constant() -> None:
    assert set(drawn(7, 10)) == {7.0}


def test_a_log_normal_has_the_median_and_the_p95_that_were_given() -> None:
    values = sorted(drawn({"kind": "log_normal", "median": 100, "p95": 800}))
    assert values[10_000] == pytest.approx(100, rel=0.03)
    assert values[19_000] == pytest.approx(800, rel=0.05)


def test_the_others_have_their_means() -> None:
    assert statistics.mean(drawn({"kind": "exponential", "mean": 5})) == pytest.approx(5, rel=0.03)
    assert statistics.mean(drawn({"kind": "uniform", "low": 2, "high": 4})) == pytest.approx(3, rel=0.01)
    choice = {"kind": "choice", "values": [1, 100], "weights": [3, 1]}
    assert statistics.mean(drawn(choice)) == pytest.approx(25.75, rel=0.03)


def test_limits_hold() -> None:
    values = drawn({"kind": "exponential", "mean": 5, "min": 2, "max": 6})
    assert (min(values), max(values)) == (2, 6)
