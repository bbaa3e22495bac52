"""Logs as ledgers: every request by its id, over all of a process's lives."""

from __future__ import annotations

from pathlib import Path

from loadtests.judging.rules import Logged
from loadtests.runs.integrity.checker import by_id
from loadtests.runs.integrity.logs import read_router_log, received

FIRST = (
    '{"level":"INFO","event":"started"}\n'
    '{"level":"INFO","event":"request","id":"a","status":200,"outcome":"served","worker":"worker-0"}\n'
    '{"level":"INFO","event":"request","id":"h","status":404}\n'
    '{"level":"INFO","event":"request","id":"b","outc'
)
SECOND = (
    '{"level":"INFO","event":"started"}\n'
    '{"level":"INFO","event":"request","id":"b","status":429,"outcome":"yield"}\n'
    '{"level":"ERROR","event":"a handler failed","id":"c"}\n'
    '{"level":"INFO","event":"request","id":"a","status":200,"outcome":"served","worker":"worker-1"}\n'
    '{"level":"INFO","event":"req'
)


def test_every_line_of_every_life_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_text(FIRST + SECOND)
    found = read_router_log(log, [len(FIRST)])
    assert found.lines == {
        "a": [Logged(1, 200, "served", "worker-0"), Logged(2, 200, "served", "worker-1")],
        "b": [Logged(2, 429, "yield", "")],
    }
    assert len(found.errors) == 1
    assert "a handler failed" in found.errors[0]


def test_outcomes_are_counted_for_the_last_life_alone(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_text(FIRST + SECOND)
    assert read_router_log(log, [len(FIRST)]).last == {"yield": 1, "served": 1}
    assert read_router_log(log).last == {"yield": 1, "served": 2}


def test_a_worker_has_received_what_it_took_and_nothing_that_it_refused(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    line = '{{"level":"INFO","event":"request","id":"{}","path":"{}","status":{}}}\n'
    asked = [("a", "/generate", 200), ("b", "/generate", 499), ("c", "/generate", 429), ("d", "/status", 200)]
    log.write_text("".join(line.format(*each) for each in [*asked, asked[0]]))
    assert by_id(received("worker-0", log)) == {"a": ["worker-0", "worker-0"], "b": ["worker-0"]}
