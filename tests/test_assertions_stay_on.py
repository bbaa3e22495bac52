"""Assertions are on wherever Weir runs, change nothing by being asked, say what was wrong, and are all in the list."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture" / "invariants.md").read_text(encoding="utf-8")
SERVICES = sorted(
    path
    for path in (ROOT / "services").rglob("*.py")
    if "cli" not in path.relative_to(ROOT).parts  # the command line runs on the operator's machine, beside the services
)
STARTERS = ["services/Dockerfile", "docker-compose.yml", "Makefile"]
STARTERS += [f"services/cli/{path.name}" for path in sorted((ROOT / "services" / "cli").glob("*.py"))]
HARMLESS = {"len", "isinstance"}


@cache
def asserted(path: Path) -> list[ast.Assert]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def narrows(test: ast.expr) -> bool:
    """For the type checker: what is not None, or of which class."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.IsNot) and ast.unparse(test.comparators[0]) == "None"
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


@pytest.mark.parametrize("file", STARTERS)
def test_nothing_that_starts_a_service_switches_assertions_off(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not re.search(r"PYTHONOPTIMIZE|\bpython3?\b[^\n]* -O|\"-OO?\"", text)


def test_an_assertion_changes_nothing() -> None:
    """Or a service without assertions would be another service."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in SERVICES
        for node in asserted(path)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Await | ast.NamedExpr | ast.Yield)
        or (isinstance(part, ast.Call) and ast.unparse(part.func) not in HARMLESS)
    ]
    assert found == []


def test_an_assertion_says_which_values_were_wrong() -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in SERVICES
        for node in asserted(path)
        if not narrows(node.test) and not isinstance(node.msg, ast.JoinedStr | ast.Call)
    ]
    assert found == []


def test_every_assertion_stands_in_the_list_of_invariants() -> None:
    wanted = {str(path.relative_to(ROOT)) for path in SERVICES for node in asserted(path) if not narrows(node.test)}
    assert [file for file in sorted(wanted) if f"/{file})" not in PAGE] == []
