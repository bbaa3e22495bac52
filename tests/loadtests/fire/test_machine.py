"""The line under every figure: what it was measured on, once, with every commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadtests.fire import machine
from loadtests.fire.machine import describe, together

HERE = "2 cores of a test, Linux 6.1, Python 3.11.7"
ELSEWHERE = "8 cores of a test, Linux 6.1, Python 3.11.7"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    for name in ("README.md", "services/app.py", "docs/page.md", "docs/results/REPORT.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def test_results_that_are_not_yet_committed_are_no_changes(checkout: Path) -> None:
    for name in ("README.md", "docs/results/REPORT.json"):
        (checkout / name).write_text("2")
    assert machine.DESCRIBED.fullmatch(describe())
    assert "with changes" not in describe()


@pytest.mark.parametrize("name", ["services/app.py", "docs/page.md"])
def test_everything_else_is_a_change(checkout: Path, name: str) -> None:
    (checkout / name).write_text("2")
    found = machine.DESCRIBED.fullmatch(describe())
    assert found is not None
    assert found["commit"].endswith(" with changes")


def test_one_machine_is_named_once_with_every_commit() -> None:
    one = f"{HERE}; commit abc, 2026-01-02"
    assert together([one, one]) == one
    several = [one, f"{HERE}; commit abc with changes, 2026-01-02", f"{HERE}; commit def, 2026-01-02", one]
    assert together(several) == f"{HERE}; commits abc, abc with changes and def, 2026-01-02"


def test_what_took_days_is_told_from_when_to_when() -> None:
    days = [f"{HERE}; commit abc, 2026-01-{day:02}" for day in (5, 2, 3)]
    assert together(days) == f"{HERE}; commit abc, 2026-01-02 to 2026-01-05"


def test_two_machines_are_two() -> None:
    two = [f"{HERE}; commit abc, 2026-01-02", f"{ELSEWHERE}; commit abc, 2026-01-02"]
    assert together(two) == "; ".join(two)
    assert together([*two, "a test"]) == "; ".join([*two, "a test"])
    assert together([]) == ""
