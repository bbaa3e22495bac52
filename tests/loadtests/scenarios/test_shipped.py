"""Every scenario that ships is read, and runs with every policy, its figures adding up."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest

from loadtests.scenarios.changes import Changes, changed, traces
from loadtests.scenarios.model import PolicyName, Scenario, find, load_raw, names, parse
from loadtests.scenarios.stages import for_stage, reason_against
from loadtests.simulator import capacity
from loadtests.simulator.engine import run
from loadtests.simulator.results import compare
from loadtests.simulator.runs import plan
from loadtests.simulator.table import page

NAMES = [name for name in names() if not reason_against(load_raw(find(name)), "simulator")]
POLICIES = typing.get_args(PolicyName)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02}.0,200,20\n" for second in range(60)
)
SERVEGEN = "t_s,client,input_tokens,output_tokens\n" + "".join(
    f"{second / 4:.2f},{second % 3},200,20\n" for second in range(80)
)

SMALLER = {"routers_large": ("workers.0.count=100", "routers.count=5", "tenants.tenant.count=1000")}
"""A tenth of it runs here, which is still a large pool for each router; all of it takes a minute and a half."""


def shipped(name: str, folder: Path, changes: Changes) -> Scenario:
    """The scenario, with a small trace where it needs one."""
    raw = changed(for_stage(load_raw(find(name)), "simulator", name), changes)
    for arrivals in traces(raw):
        path = folder / "trace.csv"
        path.write_text({"azure": AZURE, "servegen": SERVEGEN}[arrivals["format"]], encoding="utf-8")
        arrivals["path"] = str(path)
    return parse(raw, name=name)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read_whole_and_says_what_to_look_for(name: str, tmp_path: Path) -> None:
    scenario = shipped(name, tmp_path, Changes())
    assert re.search(r"\b[Ll]ook\b", " ".join((scenario.about, *scenario.watch))), "tell the reader what to look for"
    assert scenario.policies[0].name == "weir"
    assert all(run.size > 0 for run in plan(scenario))


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_with_every_policy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "ANSWERS", 2_000)  # a rough capacity will do
    monkeypatch.setattr(capacity, "ANSWERS_OF_STEPS", 200)
    has_sweep = "sweep" in load_raw(find(name))
    loads = (2.0,) if has_sweep else ()
    own_seed = "seed=4711"  # a measured capacity is remembered by its seed: no other test shall meet a rough one
    sets = (own_seed, *SMALLER.get(name, ()))
    changes = Changes(policies=POLICIES, duration_s=2.0, loads=loads, seeds=1, sets=sets)
    scenario = shipped(name, tmp_path, changes)
    results = [run(each.scenario, each.choice, load=each.load) for each in plan(scenario)]
    assert [each.policy for each in results] == list(POLICIES)
    for each in results:
        ledger = each.ledger
        assert ledger.ended == ledger.distinct, each.policy
    assert len({each.ledger.distinct for each in results}) == 1, "every policy meets the same requests"
    page(compare(name, scenario, results))
