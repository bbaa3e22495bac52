"""`make audit` with a pip-audit of the test's own: which files it is given, and what its failure means."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "requirements" / "audit.py"


@pytest.fixture
def audit() -> ModuleType:
    """The script as a module: it is no part of a package."""
    spec = importlib.util.spec_from_file_location("requirements_audit", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def answering(audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pip-audit that writes these words and exits so; the interpreter's folder is where the program is looked for."""

    def install(words: str, to: str, status: int) -> None:
        program = tmp_path / "pip-audit"
        program.write_text(f"#!/bin/sh\nprintf '%s' '{words}' >&{to}\nexit {status}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    return install


def test_a_database_out_of_reach_judges_nothing_and_says_so(
    audit: ModuleType, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answering("ConnectionError: Failed to resolve api.osv.dev", "2", 1)
    assert audit.main([]) == 2
    told = "audit: the database of advisories could not be asked, so nothing was judged: ConnectionError: Failed to"
    assert capsys.readouterr().err.startswith(told)


def test_every_lock_file_is_put_before_it(audit: ModuleType, answering: Any, tmp_path: Path) -> None:
    answering('{"dependencies": []}', "1", 0)
    program = tmp_path / "pip-audit"
    program.write_text(program.read_text().replace("#!/bin/sh\n", f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n'))
    audit.main(["--strict"])
    asked = (tmp_path / "asked").read_text()
    assert all(str(path) in asked for path in SOURCE.parent.glob("*.txt"))
    assert asked.rstrip().endswith("--strict")
