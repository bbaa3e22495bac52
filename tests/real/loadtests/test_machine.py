"""The line under every figure names the commit of a real checkout, and its changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadtests.report import machine
from loadtests.report.machine import describe


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit."""
    for name in ("README.md", "services/app.py", "docs/page.md", "docs/results/matrix.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def test_results_that_are_not_yet_committed_are_no_changes(checkout: Path) -> None:
    for name in ("README.md", "docs/results/matrix.json"):
        (checkout / name).write_text("2")
    assert machine.DESCRIBED.fullmatch(describe())
    assert "with changes" not in describe()


@pytest.mark.parametrize("name", ["services/app.py", "docs/page.md"])
def test_everything_else_is_a_change(checkout: Path, name: str) -> None:
    (checkout / name).write_text("2")
    found = machine.DESCRIBED.fullmatch(describe())
    assert found is not None
    assert found["commit"].endswith(" with changes")
