"""A recording in any of the known formats plays on the simulator and on processes, by the same file and one option."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles
from loadtests.load.traces import FORMATS
from loadtests.runs.matrix.cases import case
from loadtests.runs.matrix.staging import tenants_of
from loadtests.scenarios.changes import Changes
from loadtests.scenarios.stages import on_stage
from loadtests.simulator import capacity
from loadtests.simulator.engine import run
from loadtests.simulator.runs import plan
from tests.loadtests.load.test_traces import CLIENTS, SAMPLES

REPLAYS = ("azure_code", "servegen")
SHORT = ("seed=4712", "policies=[weir]")  # a measured capacity is remembered by its seed


@pytest.fixture(params=[(name, kind) for name in REPLAYS for kind in FORMATS], ids="-".join)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, Path]:
    """A scenario that replays a trace, a format, and a file of it."""
    name, kind = request.param
    path = tmp_path / "trace"
    path.write_text(SAMPLES[kind], encoding="utf-8")
    return name, kind, path


def test_it_plays_in_the_simulator(named: tuple[str, str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "ANSWERS_OF_STEPS", 50)  # a rough capacity will do
    name, _, path = named
    scenario = on_stage(name, "simulator", Changes(trace=path, duration_s=2.0, sets=SHORT))
    (only,) = plan(scenario)
    ledger = run(only.scenario, only.choice).ledger
    assert ledger.ended == ledger.distinct > 0


def test_it_plays_on_processes(named: tuple[str, str, Path]) -> None:
    name, kind, path = named
    made = case(name, Changes(trace=path))
    tenants = tenants_of(made.scenario, Capacity(100.0, 100.0 * made.shape.answer_tokens, Quantiles()))
    clients = CLIENTS.get(kind, ("",)) if name == "servegen" else ("",)
    assert {tenant.name.partition("-")[2] for tenant in tenants} == {*clients}
    assert {tenant.name for tenant in tenants} <= {*made.tenants}, "each has a key"
    assert all(tenant.recorded for tenant in tenants)
