"""The tables of clients and operations, their pins and their page agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtests.paths import ROOT
from loadtests.runs.matrix import environments
from tests.real.clients import table
from tests.real.clients.operations import CHECKS

PIN = re.compile(r"^([\w.-]+==[\w.]+)", re.MULTILINE)


@pytest.mark.parametrize("client", table.CLIENTS, ids=lambda client: client.name)
def test_the_pins_of_a_client_are_those_of_its_row_and_its_own_stands_first(client: table.Client) -> None:
    pins = PIN.findall((table.PLACE.pins / f"{client.name}.txt").read_text(encoding="utf-8"))
    assert set(client.requires) <= set(pins)
    assert environments.versions(client.name, table.PLACE) == pins[0] == client.requires[0]
    unhashed = table.PLACE.pins / f"{client.name}.unhashed.txt"
    assert (unhashed.read_text().split() if unhashed.exists() else []) == list(client.unhashed)


def test_the_page_of_the_clients_names_the_versions_that_are_run() -> None:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8").lower()
    for name, version in (pin.split("==") for client in table.CLIENTS for pin in client.requires):
        assert re.search(rf"{name}`? (\| )?{re.escape(version)}", page), (name, version)


def test_a_client_that_is_not_installed_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PLACE", table.PLACE._replace(environments=tmp_path))
    assert table.OPENAI.missing() == "openai is not installed: python -m tests.real.clients openai"


def test_each_operation_of_a_client_has_a_check_and_each_check_an_operation() -> None:
    assert {name for client in table.SCRIPTED for name in client.operations} == set(CHECKS)
