"""`weir compile` on this machine: the compiled core decides what the sources decide, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAYS_WHICH = "from services import compiled; import services.core.drr as drr; print(compiled.in_use(), drr.__file__)"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def ran(*arguments: str, folder: Path, core: str) -> str:
    """What a Python says in this folder; an error of it fails the test with its words."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "WEIR_CODE": core}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code whose core has been compiled."""
    folder = tmp_path_factory.mktemp("compiled") / "weir"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "compiled", "out", "build"))
    ran("-m", "services.cli", "compile", folder=folder, core="python")
    return folder


def test_the_compiled_modules_are_used_and_the_sources_where_they_are_asked_for(compiled: Path) -> None:
    assert ran("-c", SAYS_WHICH, folder=compiled, core="compiled").startswith("True ")
    assert ran("-c", SAYS_WHICH, folder=compiled, core="python").startswith("False ")


def test_the_compiled_modules_need_nothing_of_mypyc(compiled: Path) -> None:
    """Images have the compiled core and not mypyc's packages."""
    names = sorted(f"services.core.{file.stem}" for file in (compiled / "services" / "core").glob("[a-z]*.py"))
    without = f"import sys; sys.modules['mypy_extensions'] = None; import {', '.join(names)}"
    ran("-c", without, folder=compiled, core="compiled")


@pytest.mark.parametrize("oracle", ["decisions", "wire", "views"])
def test_the_compiled_core_makes_what_is_pinned(compiled: Path, oracle: str) -> None:
    assert f"{oracle}: as pinned" in ran("-m", "tests.oracles", "--only", oracle, folder=compiled, core="compiled")
