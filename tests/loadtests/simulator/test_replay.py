"""What the simulator makes of recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.load.traces import Row
from loadtests.simulator.capacity import measure
from loadtests.simulator.plan import Plan
from tests.loadtests.simulator.worlds import scenario


def replay(tmp_path: Path, until: float, **trace: Any) -> list[Row]:
    path = tmp_path / "trace.csv"
    path.write_text("t_s,client,input_tokens,output_tokens\n0,a,100,10\n1,b,200,20\n3,a,300,30\n")
    arrivals = {"kind": "trace", "path": str(path), "format": "servegen", **trace}
    world = scenario({"arrivals": arrivals})
    plan = Plan(world, measure(world).rates, seed=1)
    jobs = plan.until(until)
    return [Row(round(job.arrived_at, 6), job.tenant, job.prompt_tokens, job.natural_tokens) for job in jobs]


def test_a_replay_keeps_times_and_lengths_and_begins_again(tmp_path: Path) -> None:
    # Three requests in 3 s: the trace is taken to repeat after 4.5 s.
    assert [row.at_s for row in replay(tmp_path, 9.0)] == [0, 1, 3, 4.5, 5.5, 7.5]
    assert replay(tmp_path, 2.0) == [(0, "t0", 100, 10), (1, "t0", 200, 20)]


def test_a_replay_may_be_faster_longer_and_from_the_middle(tmp_path: Path) -> None:
    assert replay(tmp_path, 1.6, time_scale=2, token_scale=1.5, repeat=False) == [
        (0, "t0", 150, 15),
        (0.5, "t0", 300, 30),
        (1.5, "t0", 450, 45),
    ]
    assert [row.at_s for row in replay(tmp_path, 4.0, start_s=1, repeat=False)] == [0, 2]


def test_each_client_of_a_trace_can_be_a_tenant(tmp_path: Path) -> None:
    assert [row.client for row in replay(tmp_path, 4.0, by_client=True)] == ["t0-a", "t0-b", "t0-a"]


def test_a_replay_at_a_load_is_as_fast_as_that_takes(tmp_path: Path) -> None:
    # Four slots; a request takes 20 ms to read and 20 ms to write on average: 100 a second at most.
    rows = replay(tmp_path, 10.0, load=0.5)
    assert len(rows) / 10 == pytest.approx(50, rel=0.02)


def test_a_part_of_a_trace_is_replayed_and_begins_again_by_itself(tmp_path: Path) -> None:
    assert [row.at_s for row in replay(tmp_path, 6.0, start_s=1, length_s=2.5)] == [0, 2, 2.5, 4.5, 5]
    assert [row.prompt_tokens for row in replay(tmp_path, 6.0, start_s=1, length_s=2.5)] == [200, 300, 200, 300, 200]
