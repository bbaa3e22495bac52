"""The check of the documents finds what it should, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CHECK = Path(__file__).parents[2] / "docs" / "check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documents_check", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults(check: ModuleType, root: Path, text: str) -> list[str]:
    (root / "other.md").write_text("# One `thing`, twice\n\n# One thing, twice\n")
    page = root / "page.md"
    page.write_text(text)
    return list(check.faults_of(page, root))


@pytest.mark.parametrize(
    "good",
    [
        "[a](other.md)",
        "[a](other.md#one-thing-twice)",
        "[a](other.md#one-thing-twice-1)",
        "# Here\n[a](#here)",
        "[a](https://example.org/x#y) [b](mailto:a@example.org)",
        "`[a](nowhere.md)`",
        "```\n[a](nowhere.md)\n```",
    ],
)
def test_a_link_that_resolves_is_no_fault(check: ModuleType, tmp_path: Path, good: str) -> None:
    assert faults(check, tmp_path, good) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("[a](nowhere.md)", "no such file"),
        ("[a](other.md#three)", "no heading #three"),
        ("[a](#there)", "no heading #there"),
        ("![a](picture.png)", "no such file"),
        ("[a](../../etc/passwd)", "outside the repository"),
    ],
)
def test_a_dead_link_is_named_with_its_line(check: ModuleType, tmp_path: Path, bad: str, reason: str) -> None:
    (fault,) = faults(check, tmp_path, f"# Here\n\n{bad}")
    assert fault.startswith("page.md:3:")
    assert reason in fault


def test_a_setting_that_nothing_explains_is_a_fault(check: ModuleType, tmp_path: Path) -> None:
    example = tmp_path / ".env.example"
    example.write_text("# port of the router\nROUTER_PORT=8000\n\nHOST=127.0.0.1\nLOG_LEVEL=INFO  # least level\n")
    assert list(check.unexplained(example)) == [".env.example:4: HOST: no line says what it means"]
