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
from tests.real.clients import table as clients
from tests.real.clients.operations import CHECKS

PACKAGES = [subject.package for subject in SUBJECTS if subject.package]
EXACT = re.compile(r'^[\w.-]+==[\w.]+(; python_version < "3\.14")?$')


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_of_a_gateway_has_an_exact_version_and_its_own_stands_first(name: str) -> None:
    pins = environments._pins(environments.GATEWAYS, name)
    assert [pin for pin in pins if not EXACT.match(pin)] == []
    assert environments.versions(name).startswith(f"{name}==")


LOCKED = re.compile(r"^([\w.-]+)==([\w.]+)( ; [^\\\n]+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", re.MULTILINE)


@pytest.mark.parametrize("client", clients.CLIENTS, ids=lambda client: client.name)
def test_every_package_of_a_client_has_an_exact_version_and_hashes_and_its_own_stands_first(
    client: clients.Client,
) -> None:
    text = (clients.PLACE.pins / f"{client.name}.txt").read_text(encoding="utf-8")
    assert LOCKED.sub("", text) == ""
    pins = [f"{name}=={version}" for name, version, *_ in LOCKED.findall(text)]
    assert set(client.requires) <= set(pins)
    assert environments.versions(client.name, clients.PLACE) == pins[0] == client.requires[0]
    unhashed = clients.PLACE.pins / f"{client.name}.unhashed.txt"
    assert (unhashed.read_text().split() if unhashed.exists() else []) == list(client.unhashed)


def test_the_page_of_the_clients_names_the_versions_that_are_run() -> None:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8").lower()
    for name, version in (pin.split("==") for client in clients.CLIENTS for pin in client.requires):
        assert re.search(rf"{name}`? (\| )?{re.escape(version)}", page), (name, version)


def test_a_client_that_is_not_installed_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PLACE", clients.PLACE._replace(environments=tmp_path))
    assert clients.OPENAI.missing() == "openai is not installed: python -m tests.real.clients openai"


def test_each_operation_of_a_client_has_a_check_and_each_check_an_operation() -> None:
    assert {name for client in clients.SCRIPTED for name in client.operations} == set(CHECKS)


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
