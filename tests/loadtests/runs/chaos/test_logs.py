"""The router's log as a ledger: every request by its id, over all the router's lives."""

from __future__ import annotations

from pathlib import Path

from loadtests.runs.chaos.logs import faults, outcomes

LOG = (
    '{"level":"INFO","event":"started"}\n'
    '{"level":"INFO","event":"request","id":"a","outcome":"served"}\n'
    '{"level":"INFO","event":"request","id":"b","outc{"level":"INFO","event":"started"}\n'
    '{"level":"INFO","event":"request","id":"b","outcome":"yield"}\n'
    '{"level":"ERROR","event":"a handler failed","id":"c"}\n'
    '{"level":"INFO","event":"request","id":"a","outcome":"served"}\n'
    '{"level":"INFO","event":"req'
)


def test_every_line_of_every_life_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_text(LOG)
    assert outcomes(log) == {"a": ["served", "served"], "b": ["yield"]}
    assert [fault for fault in faults(log) if "a handler failed" not in fault] == []
    assert len(faults(log)) == 1
