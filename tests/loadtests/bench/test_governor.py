"""The arithmetic of the governor's proofs: what is drawn, what counts as held, what is on the page. Not the speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.governor.bench import result
from loadtests.bench.governor.burst import Burst, State, figures, timeline
from loadtests.bench.governor.wire import upload
from loadtests.report.figure import Figure
from loadtests.report.result import write
from tests.governor.talk import Rig


def burst(**changed: object) -> Burst:
    told = Burst(20, 1, 2.0, done=1, yielded=19, max_inflight=1, refused_within_s=0.1)
    told.states = [State(0.1 * at, 1, 1, min(at, 19)) for at in range(40)]
    for name, value in changed.items():
        setattr(told, name, value)
    return told


def test_the_timeline_tells_changes_only_and_no_more_than_fit() -> None:
    lines = timeline(burst().states)
    assert len(lines) == 16
    assert "yielded     0" in lines[0]
    assert "yielded    19" in lines[-1]
    assert len(timeline([State(0.0, 0, 0, 0)] * 9)) == 1
    assert timeline([]) == []


@pytest.mark.parametrize(("changed", "held"), [({}, True), ({"max_inflight": 2}, False), ({"yielded": 18}, False)])
def test_a_burst_holds_only_if_nothing_ran_beyond_the_cap_and_everybody_was_told(
    changed: dict[str, object], held: bool
) -> None:
    told = list(figures(burst(**changed), burst(done=20)))
    assert all(figure.held for figure in told) is held


def test_a_burst_that_did_not_serve_everybody_is_a_miss() -> None:
    assert [figure.held for figure in figures(burst(), burst(done=19))].count(False) == 1


def test_what_the_bench_sends_is_an_upload() -> None:
    peer = Rig().connect()
    said = upload(b"x" * 20, job="J", chunk_bytes=8)
    assert [reply["status"] for reply in peer.send(*said)] == ["ok", "ok", "ok"]
    assert peer.work is not None
    assert bytes(peer.work.payload) == b"x" * 20
    assert len(upload(b"", job="J")) == 2


def test_the_page_says_what_held_and_shows_the_timeline(tmp_path: Path) -> None:
    parts = {"burst": [Figure("a", 1, "jobs", 1), Figure("b", 1, "jobs", 2)], "speed": [Figure("c", 5, "pings/s")]}
    made = result(parts, ["Something was left out."], [burst(), burst(done=20)])
    written = write(made, tmp_path / "p", command="python -m x", machine="a machine")
    assert [path.name for path in written] == ["p.md", "p.json", "p.svg", "p-dark.svg"]
    text = written[0].read_text()
    assert "1 of 2 targets held" in text
    assert "Something was left out." in text
    assert "inflight 1" in text
    assert 'srcset="p-dark.svg"' in text
