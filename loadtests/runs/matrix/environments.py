"""A virtual environment for each program of others that pip can install: gateways in `.venv/peers/` (ignored by git).

`pins/NAME.txt` lists its packages, with hashes or without. Where one of them has another build in each index, as torch
has, `pins/NAME.unhashed.txt` lists it. An environment is made once, and again when its pins change. If pip fails, the
program is left out, and the end of pip's error is reported. Inference servers (`tests/real/engines`) and clients
(`tests/real/clients`) have places of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from loadtests.paths import ROOT
from loadtests.report.progress import Say

INSTALL_WITHIN_S = 600
LAST_WORDS = 300
STAMP = ".pins"  # written last: marks a complete installation


class Place(NamedTuple):
    """Where pins are kept and environments are made."""

    pins: Path
    environments: Path
    within_s: float = INSTALL_WITHIN_S


GATEWAYS = Place(Path(__file__).with_name("pins"), ROOT / ".venv" / "peers")


def program(name: str, command: str = "", place: Place = GATEWAYS) -> Callable[[], Path | None]:
    """Returns a function that finds the command in its environment; None if it is missing or incomplete."""

    def find() -> Path | None:
        path = place.environments / name / "bin" / (command or name)
        return path if path.exists() and _stamp(place, name) == _wanted(place, name) else None

    return find


def versions(name: str, place: Place = GATEWAYS) -> str:
    """The first pin, which is the program itself."""
    return _pins(place, name)[0].rstrip(" \\")


def make(name: str, say: Say, place: Place = GATEWAYS) -> bool:
    """Make the environment unless it exists. Returns False and reports why if that fails."""
    if _stamp(place, name) == _wanted(place, name):
        return True
    folder = place.environments / name
    say(f"Installing {versions(name, place)} into {folder} (minutes, once)")
    shutil.rmtree(folder, ignore_errors=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    installs = [[*install, "--no-input", "--no-deps", "-r", str(pins)] for pins in _files(place, name)]
    steps = [[sys.executable, "-m", "venv", str(folder)], *installs]
    for step in steps:
        if failed := _run(step, place.within_s):
            say(f"{name} is left out: {failed}")
            return False
    (folder / STAMP).write_text(_wanted(place, name), encoding="utf-8")
    return True


def make_named(names: Sequence[str], known: Mapping[str, str], place: Place) -> int:
    """Make the environments of these programs; of all `known` without a name. `known`: name -> name of its pins.

    Returns the exit status: 2 for an unknown name, 1 if one could not be made; the others are.
    """
    if unknown := [name for name in names if name not in known]:
        print(f"there is no {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    made = [make(known[name], print, place) for name in names or known]
    return 0 if all(made) else 1


def _run(step: list[str], within_s: float = INSTALL_WITHIN_S) -> str:
    """Runs a command. Returns why it failed; empty if it succeeded."""
    try:
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=within_s)
    except subprocess.TimeoutExpired:
        return f"not installed within {within_s:g} s"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (errors[-1] if errors else done.stderr)[-LAST_WORDS:].strip()


def _files(place: Place, name: str) -> list[Path]:
    """What pip installs, a file at a time: it wants a hash for each package of a file, or for none."""
    unhashed = place.pins / f"{name}.unhashed.txt"
    return [place.pins / f"{name}.txt", *([unhashed] if unhashed.exists() else [])]


def _pins(place: Place, name: str) -> list[str]:
    lines = "\n".join(file.read_text(encoding="utf-8") for file in _files(place, name)).splitlines()
    return [pin for line in lines if (pin := line.split("#")[0].strip())]


def _wanted(place: Place, name: str) -> str:
    return sha256("\n".join(_pins(place, name)).encode()).hexdigest()


def _stamp(place: Place, name: str) -> str:
    try:
        return (place.environments / name / STAMP).read_text(encoding="utf-8")
    except OSError:
        return ""
