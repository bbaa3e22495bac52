"""Many runs: which there are, which start first, how far they are, and what happens when one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest

from loadtests.scenarios.model import Scenario, parse
from loadtests.simulator import runs
from loadtests.simulator.accounts import Timeline
from loadtests.simulator.runs import execute, plan
from services.cli.errors import LabError


def scenario(**changed: Any) -> Scenario:
    workers = {"kind": "slots", "slots": 4, "prefill_tokens_per_s": 2500, "s_per_token": 0.0008}
    tenant = {"name": "a", "arrivals": {"kind": "poisson", "load": 1}, "prompt_tokens": 100, "completion_tokens": 50}
    raw = {
        "title": "A test of runs",
        "duration_s": 4,
        "warm_up_s": 1,
        "cool_down_s": 1,
        "workers": [workers],
        "tenants": [tenant],
        "policies": ["fifo", "fifo_ttl"],
        "seeds": [1, 2],
        "sweep": {"loads": [0.5, 2, 1]},
    }
    return parse(raw | changed)


def test_there_is_a_run_for_every_policy_at_every_load_with_every_seed() -> None:
    made = [(run.load, run.scenario.seed, run.choice.name) for run in plan(scenario())]
    loads, seeds, policies = (0.5, 1.0, 2.0), (1, 2), ("fifo", "fifo_ttl")
    assert made == [(load, seed, policy) for load in loads for seed in seeds for policy in policies]


def test_a_run_is_as_big_as_what_is_asked_in_it() -> None:
    assert [run.size for run in plan(scenario(seeds=[1], policies=["fifo"]))] == [2, 4, 8]
    arrivals = {"kind": "poisson", "load": 1, "phases": [{"from_s": 1, "until_s": 2, "times": 20}]}
    (burst,) = plan(scenario(tenants=[{"name": "a", "arrivals": arrivals}], seeds=[1], policies=["fifo"], sweep=None))
    assert burst.size == 4 + 20


def test_the_biggest_runs_start_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float | None] = []
    monkeypatch.setattr(runs, "one", lambda run, told: begun.append(run.load))
    execute(plan(scenario()), 1)
    assert begun == [2, 2, 2, 2, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5]


def test_progress_only_grows_and_ends_at_the_whole() -> None:
    told: list[tuple[float, int]] = []
    made = plan(scenario(seeds=[1]))
    results = execute(made, 1, lambda size, done: told.append((size, done)))
    assert len(results) == len(made)
    assert told == sorted(told)
    assert told[-1] == (pytest.approx(sum(run.size for run in made)), len(made))


def test_where_no_one_listens_lines_tell_how_far_the_runs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []

    @contextmanager
    def progress(name: str, takes_s: Callable[[float], float], far: Callable[[], str]) -> Iterator[None]:
        told.append((far(), takes_s(8.0)))
        yield
        told.append((far(), takes_s(8.0)))

    monkeypatch.setattr(runs, "progress", progress)
    made = plan(scenario(seeds=[1]))
    execute(made, 1)
    assert told == [(f"0 of {len(made)} runs", inf), (f"{len(made)} of {len(made)} runs", pytest.approx(8.0))]


def test_a_run_that_fails_fails_them_all() -> None:
    broken = scenario(weir={"no_such_setting": 1}, policies=["weir", "fifo"])
    with pytest.raises(LabError, match="no_such_setting"):
        execute(plan(broken), 1)


def test_latencies_are_told_for_the_bucket_in_which_the_answer_came() -> None:
    timeline = Timeline(1.0)
    for latencies_s in ((), (1.2,), ()):
        for latency_s in latencies_s:
            timeline.answer(latency_s, on_time=False)
        timeline.close_bucket(0, 0)
    timeline.answer(9.9, on_time=True)  # after the end: while it drains
    told = timeline.series()
    assert told.latency_p95_s == (None, pytest.approx(1.2, rel=0.02), None)
    assert (told.on_time, told.late) == ((0, 0, 0), (0, 1, 0))
