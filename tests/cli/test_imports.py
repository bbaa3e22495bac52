"""The command line is in every image, beside one service: no verb needs a package there that the image lacks."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli import doctor
from services.cli.checks import FindingLevel, canonical
from services.cli.config import LabSettings
from services.cli.ports import free_port

ROOT = Path(__file__).parents[2]
CLI = ROOT / "services" / "cli"
OF_RETRIEVAL = "databasecheck"
"""The module that needs a package of retrieval's. Whoever calls it imports it there."""


def in_every_image() -> set[str]:
    """The packages of the stage `dependencies` in services/Dockerfile, from which every image has them."""
    locks = [(ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8") for name in ("service", "cli")]
    return {canonical(name) for lock in locks for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}


def imported(text: str) -> Iterator[str]:
    """The modules that are imported when this one is."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield statement.module
            yield from (f"{statement.module}.{each.name}" for each in statement.names)


def lacking(text: str) -> set[str]:
    """The packages that some image lacks, and the modules that need one, of those that this text imports at once."""
    there, packages = in_every_image(), importlib.metadata.packages_distributions()
    found = set()
    for name in imported(text):
        of = {canonical(each) for each in packages.get(name.partition(".")[0], ())} - {"weir"}
        if (of and not of & there) or name == f"services.cli.{OF_RETRIEVAL}":
            found.add(name)
    return found


def test_no_module_of_the_command_line_imports_at_once_what_an_image_lacks() -> None:
    assert lacking("import asyncpg\nfrom rich.text import Text\n") == {"asyncpg"}, "the rule sees what it forbids"
    assert lacking(f"from services.cli import {OF_RETRIEVAL}\n"), "also through the module that needs it"
    assert not lacking("def f():\n    import asyncpg\n")
    for module in CLI.glob("*.py"):
        if module.stem != OF_RETRIEVAL:
            assert not lacking(module.read_text(encoding="utf-8")), module.name


@pytest.mark.sockets
def test_beside_one_service_the_doctor_asks_the_router_and_nothing_of_a_whole_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "services.retrieval" else object())
    settings = LabSettings(_env_file=None, router_port=free_port())  # type: ignore[call-arg]
    found = {each.what: each for each in asyncio.run(doctor.examine(settings))}
    assert list(found) == ["python", "stack", "router"]
    assert found["stack"].seen.startswith("one service is installed here")
    assert all(each.level in (FindingLevel.OK, FindingLevel.SKIP) for each in found.values())
