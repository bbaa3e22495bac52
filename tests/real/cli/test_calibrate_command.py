"""`weir worker calibrate` becomes the worker's measurement: its words, its settings, its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLOCK = {"SIM_STEP_MS": "12", "SIM_STEP_PER_SEQUENCE_MS": "0.75", "SIM_PREFILL_MS_PER_TOKEN": "0.25"}


def calibrate(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), **settings}
    command = [sys.executable, "-m", "services.cli", "worker", "calibrate", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=100)


def assignments(text: str) -> dict[str, float]:
    pairs = (line.split("=") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_the_clock_of_the_engine_that_the_settings_name_is_found_and_written(tmp_path: Path) -> None:
    done = calibrate(tmp_path, "--write", "clock.env", "--repeats", "3", **CLOCK)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = assignments((tmp_path / "clock.env").read_text())
    assert found == {name: pytest.approx(float(value), rel=0.01) for name, value in CLOCK.items()}


def test_without_a_file_it_is_printed(tmp_path: Path) -> None:
    done = calibrate(tmp_path, "--repeats", "3", **CLOCK)
    assert done.returncode == 0, done.stderr
    assert assignments(done.stdout).keys() == CLOCK.keys()
    assert [path for path in tmp_path.iterdir() if path.name.endswith(".env")] == []


def test_settings_that_cannot_be_used_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    done = calibrate(tmp_path, SIM_STEP_MS="-1")
    assert done.returncode == 2
    assert "SIM_STEP_MS" in done.stderr
