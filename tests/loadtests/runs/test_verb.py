"""One verb plays a scenario on any stage: what it starts, and what it refuses to start."""

from __future__ import annotations

import os
import sys

import pytest

from loadtests.runs import __main__ as verb


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run in place of this process."""
    words: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: words.append(argv[1:]))
    monkeypatch.setitem(os.environ, "SCENARIO", "")
    return words


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("burst",), ["-m", "loadtests.runs.matrix", "burst"]),
        (("burst", "--against", "weir, haproxy", "--quick"),
         ["-m", "loadtests.runs.matrix", "burst", "--against", "weir,haproxy", "--quick"]),
        (("burst", "--on", "simulator", "--against", "weir,fifo"),
         ["-m", "loadtests.simulator", "burst", "--policy", "weir", "--policy", "fifo"]),
        (("burst", "--on", "world"), ["-m", "loadtests.world", "--scenario", "burst"]),
    ],
)  # fmt: skip
def test_a_stage_gets_its_own_command(
    arguments: tuple[str, ...], wanted: list[str], started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["play", *arguments])
    verb.main()
    assert started == [wanted]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("no_such",), "no_such"),
        (("outage_frozen", "--on", "simulator"), "not played by simulator: its workers are up or down"),
        (("burst", "--on", "world", "--against", "fifo"), "the world plays Weir alone"),
    ],
)
def test_what_cannot_be_played_is_said_and_not_begun(
    arguments: tuple[str, ...],
    told: str,
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["play", *arguments])
    assert verb.main() == 2
    assert told in capsys.readouterr().err
    assert started == []
