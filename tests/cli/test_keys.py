"""`weir keys new`: what it prints is a key, and a file that the router reads."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from services.cli import keys
from services.cli.__main__ import app
from services.router.tenancy.tenants import FileTenants
from services.router.tenancy.tenantsfile import RESERVED

KEY = re.compile(r"^    (weir_[A-Za-z0-9_-]{43})$", re.MULTILINE)
HASH = re.compile(r"sha256:[0-9a-f]{64}")


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, ["keys", "new", *words])
    assert result.exit_code == 0, result.output
    return result.output


def listed(text: str) -> str:
    """The lines that belong in the file."""
    return "\n".join(line for line in text.splitlines() if line.startswith("    ") and not KEY.match(line))


def owner(file: Path, key: str) -> str:
    return FileTenants(file).identify({b"authorization": b"Bearer " + key.encode()}.get, None).id


def test_the_lines_that_are_printed_are_a_tenant_that_the_key_opens(tmp_path: Path) -> None:
    text = printed("--tenant", "acme")
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants:\n{listed(text)}\n")
    assert owner(file, KEY.findall(text)[0]) == "acme"


@given(st.from_regex(keys.TENANT, fullmatch=True).filter(lambda name: name not in RESERVED))
def test_any_name_that_is_allowed_is_written_so_that_it_stays_a_name(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    out = StringIO()
    keys.new(Console(file=out), name)
    text = out.getvalue()
    file = tmp_path_factory.mktemp("named") / "tenants.yaml"
    file.write_text(f"tenants:\n{listed(text)}\n")
    assert keys.name_fault(name) is None
    assert owner(file, KEY.findall(text)[0]) == name


def test_without_a_tenant_the_hash_alone_is_printed_to_stand_beside_the_old_one(tmp_path: Path) -> None:
    first, second = printed("--tenant", "acme"), printed()
    file = tmp_path / "tenants.yaml"
    file.write_text(f'tenants:\n  - {{id: acme, keys: ["{HASH.findall(first)[0]}", {listed(second).strip()}]}}\n')
    assert [owner(file, KEY.findall(text)[0]) for text in (first, second)] == ["acme", "acme"]


def test_each_key_is_printed_once_and_is_a_new_one() -> None:
    texts = [printed() for _ in range(3)]
    found = [KEY.findall(text) for text in texts]
    assert [len(keys) for keys in found] == [1, 1, 1]
    assert len({keys[0] for keys in found}) == 3
    assert all(len(HASH.findall(text)) == 1 for text in texts)


@pytest.mark.parametrize("name", ["other", "a b", "a/b", "é", "x" * 65, "a\n"])
def test_a_name_that_the_router_would_refuse_is_refused_here_with_status_2(name: str) -> None:
    result = CliRunner().invoke(app, ["keys", "new", "--tenant", name])
    assert result.exit_code == 2
    assert not KEY.search(result.output)
    assert not HASH.search(result.output)


def test_it_is_said_what_to_do_with_the_key() -> None:
    text = printed("--tenant", "acme")
    for part in ("shown this once", "TENANTS_FILE", "kill -HUP", "two are allowed"):
        assert part in text
