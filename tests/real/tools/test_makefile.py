"""What `make` would install, without running it: torch only where somebody asked for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TORCH = "-r requirements/torch"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def would_run(folder: Path, *words: str, dotenv: str = "", **environment: str) -> str:
    """The commands of `make WORDS` in a fresh clone that has this .env."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "requirements", folder / "requirements", dirs_exist_ok=True)
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
    assert commands.index("-r requirements/lab.txt") < commands.index(TORCH) < commands.index("weir up")


@pytest.mark.parametrize("line", ["ENGINE=torch", 'ENGINE="torch"  # a comment', "ENGINE='torch'"])
def test_an_engine_named_in_dotenv_counts_too(tmp_path: Path, line: str) -> None:
    assert TORCH in would_run(tmp_path, "up", dotenv=f"WORKERS_COUNT=1\n{line}\n")


@pytest.mark.parametrize("line", ["#ENGINE=torch", "ENGINE=simulated", "ENGINE=torch\nENGINE=simulated"])
def test_an_engine_that_is_not_in_force_brings_nothing(tmp_path: Path, line: str) -> None:
    assert TORCH not in would_run(tmp_path, "up", dotenv=f"{line}\n")


def test_the_environment_goes_before_dotenv(tmp_path: Path) -> None:
    assert TORCH not in would_run(tmp_path, "up", dotenv="ENGINE=torch\n", ENGINE="simulated")
    assert TORCH in would_run(tmp_path, "up", dotenv="ENGINE=simulated\n", ENGINE="torch")


INSTALLING = ["venv", "load", "simulate", "otel", "torch", "lock", "audit", "fuzz"]


@pytest.mark.parametrize("verb", INSTALLING)
def test_what_is_installed_is_a_wheel_with_a_known_hash_or_this_project_itself(tmp_path: Path, verb: str) -> None:
    installs = [line for line in would_run(tmp_path, verb).splitlines() if "pip install" in line]
    assert installs
    for line in installs:
        locked = "--require-hashes --only-binary :all:" in line and "-r requirements/" in line
        ours = line.endswith("--no-index --no-deps --no-build-isolation -e .")
        assert locked or ours or "torch" in line.split()[-1], line


def test_torch_is_the_one_package_without_a_hash_and_has_its_exact_version(tmp_path: Path) -> None:
    """Which build of it pip takes depends on where pip looks, and each index has hashes of its own."""
    unlocked = [
        line
        for line in would_run(tmp_path, "torch").splitlines()
        if "pip install" in line and "--require-hashes" not in line and not line.endswith("-e .")
    ]
    (line,) = unlocked
    assert line.endswith("--only-binary :all:  -c constraints.txt torch")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [pin for pin in pins if pin.startswith("torch==")]


def test_torch_of_the_package_index_has_its_hash_too(tmp_path: Path) -> None:
    commands = would_run(tmp_path, "torch", "TORCH_BUILD=pypi")
    assert "--require-hashes --only-binary :all: $quiet -r requirements/torch-pypi.txt" in commands
    assert "-c constraints.txt torch" not in commands


def test_torch_from_another_index_comes_from_that_index_alone(tmp_path: Path) -> None:
    commands = would_run(tmp_path, "torch", TORCH_INDEX_URL="https://torch.example/cpu")
    assert "--index-url https://torch.example/cpu -c constraints.txt torch" in commands
    assert "extra-index-url" not in commands
