"""Environments of gateways and clients: pinned to the last package, made once, and left out with a word where pip
fails.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtests.paths import ROOT
from loadtests.runs.matrix import environments
from loadtests.runs.matrix.subjects import SUBJECTS

PACKAGES = [subject.package for subject in SUBJECTS if subject.package]
EXACT = re.compile(r'^[\w.-]+==[\w.]+(; python_version < "3\.14")?$')


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_of_a_gateway_has_an_exact_version_and_its_own_stands_first(name: str) -> None:
    pins = environments._pins(environments.GATEWAYS, name)
    assert [pin for pin in pins if not EXACT.match(pin)] == []
    assert environments.versions(name).startswith(f"{name}==")


LOCKED = re.compile(r"^([\w.-]+)==([\w.]+)( ; [^\\\n]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", re.MULTILINE)


CLIENTS = ROOT / "tests" / "real" / "clients" / "pins"


@pytest.mark.parametrize("name", sorted(path.stem for path in CLIENTS.glob("*.txt") if ".unhashed" not in path.name))
def test_every_package_of_a_client_has_an_exact_version_and_hashes_and_its_own_stands_first(name: str) -> None:
    assert LOCKED.sub("", (CLIENTS / f"{name}.txt").read_text(encoding="utf-8")) == ""
    assert environments.versions(name, environments.Place(CLIENTS, CLIENTS)).startswith(f"{name}")


@pytest.fixture
def place(tmp_path: Path) -> environments.Place:
    return environments.Place(tmp_path, tmp_path / ".venv")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be run, in a folder that has one gateway `some`."""
    taken: list[list[str]] = []

    def run(step: list[str], within_s: float) -> str:
        taken.append(step)
        (tmp_path / ".venv" / "some" / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / ".venv" / "some" / "bin" / "some").touch()
        return ""

    (tmp_path / "some.txt").write_text("some==1.0  # itself\n\n# a word\nother==2\n")
    monkeypatch.setattr(environments, "_run", run)
    return taken


def test_an_environment_is_made_once_and_again_when_its_pins_change(
    steps: list[list[str]], tmp_path: Path, place: environments.Place
) -> None:
    said: list[str] = []
    assert environments.program("some", place=place)() is None
    assert environments.make("some", said.append, place)
    assert len(steps) == 2  # the environment, and what is in it
    assert environments.program("some", place=place)() == tmp_path / ".venv" / "some" / "bin" / "some"
    assert environments.make("some", said.append, place)
    assert len(steps) == 2
    (tmp_path / "some.txt").write_text("some==1.1\n")
    assert environments.program("some", place=place)() is None
    assert environments.make("some", said.append, place)
    assert len(steps) == 4
    assert len(said) == 2


def test_packages_without_a_hash_are_installed_by_a_step_of_their_own(
    steps: list[list[str]], tmp_path: Path, place: environments.Place
) -> None:
    (tmp_path / "some.txt").write_text("some==1.0 \\\n    --hash=sha256:00\n")
    (tmp_path / "some.unhashed.txt").write_text("torch==2.0\n")
    said: list[str] = []
    assert environments.make("some", said.append, place)
    assert [step[-1] for step in steps[1:]] == [str(tmp_path / "some.txt"), str(tmp_path / "some.unhashed.txt")]
    assert said[0].startswith("Installing some==1.0 into ")
    (tmp_path / "some.unhashed.txt").write_text("torch==2.1\n")
    assert environments.program("some", place=place)() is None


def test_where_pip_fails_the_gateway_is_left_out_with_pips_own_word(
    steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, place: environments.Place
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        environments, "_run", lambda step, within_s: "ERROR: No matching distribution" if "pip" in step else ""
    )
    assert not environments.make("some", said.append, place)
    assert said[-1] == "some is left out: ERROR: No matching distribution"
    assert environments.program("some", place=place)() is None
