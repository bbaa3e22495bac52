"""A virtual environment for each gateway that pip can install, in `.venv/peers/` (ignored by git).

`pins/NAME.txt` lists its packages. An environment is made once, and again when its pins change. If pip fails, the
gateway is left out, and the end of pip's error is reported.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from loadtests.paths import ROOT
from loadtests.report.progress import Say

PINS = Path(__file__).with_name("pins")
ENVIRONMENTS = ROOT / ".venv" / "peers"
INSTALL_WITHIN_S = 600
LAST_WORDS = 300
STAMP = ".pins"  # written last: marks a complete installation


def program(name: str) -> Callable[[], Path | None]:
    """Returns a function that finds the command in its environment; None if it is missing or incomplete."""

    def find() -> Path | None:
        path = ENVIRONMENTS / name / "bin" / name
        return path if path.exists() and _stamp(name) == _wanted(name) else None

    return find


def versions(name: str) -> str:
    """The first pin, which is the gateway itself."""
    return _pins(name)[0]


def make(name: str, say: Say) -> bool:
    """Make the environment unless it exists. Returns False and reports why if that fails."""
    if _stamp(name) == _wanted(name):
        return True
    folder = ENVIRONMENTS / name
    say(f"Installing {versions(name)} into {folder.relative_to(ROOT)} (up to two minutes, once)")
    shutil.rmtree(folder, ignore_errors=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    steps = [
        [sys.executable, "-m", "venv", str(folder)],
        [*install, "--no-input", "--no-deps", "-r", str(PINS / f"{name}.txt")],
    ]
    for step in steps:
        if failed := _run(step):
            say(f"{name} is left out: {failed}")
            return False
    (folder / STAMP).write_text(_wanted(name), encoding="utf-8")
    return True


def _run(step: list[str]) -> str:
    """Runs a command. Returns why it failed; empty if it succeeded."""
    try:
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=INSTALL_WITHIN_S)
    except subprocess.TimeoutExpired:
        return f"not installed within {INSTALL_WITHIN_S} s"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (errors[-1] if errors else done.stderr)[-LAST_WORDS:].strip()


def _pins(name: str) -> list[str]:
    lines = (line.split("#")[0].strip() for line in (PINS / f"{name}.txt").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _wanted(name: str) -> str:
    return sha256("\n".join(_pins(name)).encode()).hexdigest()


def _stamp(name: str) -> str:
    try:
        return (ENVIRONMENTS / name / STAMP).read_text(encoding="utf-8")
    except OSError:
        return ""
