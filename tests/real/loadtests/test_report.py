"""The machinery, on the stack itself: it starts, is switched, hurt and healed, gives results, and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from loadtests.cluster.processes import free_ports, get
from loadtests.cluster.stand import Stand
from loadtests.paths import ROOT
from loadtests.runs.matrix import trouble
from loadtests.runs.matrix.cell import Cell
from loadtests.runs.matrix.kept import Kept
from loadtests.runs.matrix.playing import Playing
from loadtests.runs.matrix.policies import FIFO, HAPROXY, WEIR, admin_url, at_rest, available, in_force
from loadtests.runs.matrix.scenarios import SCENARIOS
from loadtests.runs.matrix.stack import embedded, running
from loadtests.runs.peers.gateways import Deadlines
from tests.loadtests.runs.matrix.made import series

DEADLINES = Deadlines(1000, 1000)
PACE = 0.12
HEALS_WITHIN_S = 20.0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "loadtests.runs.matrix", *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_the_scenarios_can_be_listed() -> None:
    listed = command("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [scenario.name for scenario in SCENARIOS]


def test_no_load_goes_to_another_machine() -> None:
    refused = command("--url", "http://example.com")
    assert refused.returncode == 1
    assert "--url" in refused.stderr


def test_a_stack_that_does_not_answer_is_said_to_be_away(tmp_path: Path) -> None:
    away = f"http://127.0.0.1:{free_ports(1)[0]}"
    missed = command("--url", away, "--workers", away, "--quick", "--only", "baseline", "--out", str(tmp_path))
    assert missed.returncode == 1
    assert "does not stand" in missed.stdout
    assert missed.stderr == ""
    assert not list(tmp_path.iterdir())


def told(stand: Stand, path: str) -> Any:
    return json.loads(get(admin_url(stand) + path))


async def check_policies(stand: Stand) -> None:
    """A policy is in force while it is played, and the router is whole again afterwards."""
    async with in_force(FIFO, stand, DEADLINES) as asked:
        assert asked is stand
        assert set(told(stand, "/admin/policy").values()) == {False}
    assert set(told(stand, "/admin/policy").values()) == {True}
    if HAPROXY in available():
        async with in_force(HAPROXY, stand, DEADLINES) as asked:
            assert asked.url != stand.url
            assert asked.workers == stand.workers
            haproxy = asked.servers[-1].process
            assert haproxy.running
        assert not haproxy.running
    await at_rest(stand)


def check_trouble(stand: Stand) -> None:
    """A worker that is made slow heals by itself, without us."""
    faults = stand.workers[0].metrics_url.removesuffix("/metrics") + "/faults"
    trouble.put(stand.workers[:1], 8.0, 0.5)
    assert json.loads(get(faults))["slow_factor"] == 8
    end = time.monotonic() + HEALS_WITHIN_S
    while json.loads(get(faults))["slow_factor"] != 1:
        assert time.monotonic() < end, "the worker did not heal"
        time.sleep(0.1)


def check_cell(cell: Cell) -> None:
    """Whatever the machine was like: everything was counted once."""
    assert cell.fault == ""
    assert cell.requests > 0
    assert cell.capacity_per_s > 0
    assert cell.gateway_ms > 0
    for row in cell.rows:
        assert row.on_time + row.refused + row.failed == pytest.approx(1)
        assert 0 <= row.in_vain <= 1
        assert row.dropped <= row.refused
    assert sum(second.sent for second in cell.seconds) == cell.requests


@pytest.mark.timeout(180)
def test_the_stack_is_played_under_every_policy_and_leaves_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    kept = Kept(tmp_path / "series.json", series(), said.append)
    wanted = [scenario for scenario in SCENARIOS if scenario.name in ("baseline", "slow_worker")]
    jobs = [(scenario, policy) for scenario in wanted for policy in available()]

    async def play() -> list[psutil.Process]:
        async with embedded() as stand:
            await check_policies(stand)
            check_trouble(stand)
            same = await running(stand.url, [worker.url for worker in stand.workers], tmp_path)
            assert [server.process.pid for server in same.servers] == [s.process.pid for s in stand.servers]
            await Playing(stand, jobs, said.append, kept.keep, "a test", PACE).all()
            return [psutil.Process(server.process.pid) for server in stand.servers]

    left = uvloop.run(play())
    assert not any(process.is_running() for process in left)
    for cell in kept.series.cells.values():
        check_cell(cell)
    assert len(kept.series.cells) == len(jobs)
    first = kept.series.cell("baseline", WEIR.name)
    assert first is not None
    assert {tenant.name for tenant in first.rows[0].tenants} == {"anna", "ben", "chloe"}
    rows = [row for cell in kept.series.cells.values() if cell.policy == WEIR.name for row in cell.rows]
    assert any(row.answers_per_s > 0 for row in rows)  # late ones too: how fast the machine is was not asked here
    assert any(f"1 of {len(jobs)}" in line for line in said)
