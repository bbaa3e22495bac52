"""What `make` would install, without running it: torch only where somebody asked for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TORCH = "-e '.[torch]'"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def would_run(folder: Path, *words: str, dotenv: str = "", **environment: str) -> str:
    """The commands of `make WORDS` in a fresh clone that has this .env."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / ".env").write_text(dotenv)
    env = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(
        ["make", "-n", *words], cwd=folder, env=env, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("verb", ["up", "test", "check", "doctor", "load"])
def test_a_light_install_has_no_torch(tmp_path: Path, verb: str) -> None:
    assert TORCH not in would_run(tmp_path, verb)


def test_a_real_model_brings_what_it_needs_before_anything_is_started(tmp_path: Path) -> None:
    commands = would_run(tmp_path, "up", "ENGINE=torch", "MODEL_ID=org/model")
    assert commands.index("[retrieval,lab]") < commands.index(TORCH) < commands.index("weir up")


@pytest.mark.parametrize("line", ["ENGINE=torch", 'ENGINE="torch"  # a comment', "ENGINE='torch'"])
def test_an_engine_named_in_dotenv_counts_too(tmp_path: Path, line: str) -> None:
    assert TORCH in would_run(tmp_path, "up", dotenv=f"WORKERS_COUNT=1\n{line}\n")


@pytest.mark.parametrize("line", ["#ENGINE=torch", "ENGINE=simulated", "ENGINE=torch\nENGINE=simulated"])
def test_an_engine_that_is_not_in_force_brings_nothing(tmp_path: Path, line: str) -> None:
    assert TORCH not in would_run(tmp_path, "up", dotenv=f"{line}\n")


def test_the_environment_goes_before_dotenv(tmp_path: Path) -> None:
    assert TORCH not in would_run(tmp_path, "up", dotenv="ENGINE=torch\n", ENGINE="simulated")
    assert TORCH in would_run(tmp_path, "up", dotenv="ENGINE=simulated\n", ENGINE="torch")
