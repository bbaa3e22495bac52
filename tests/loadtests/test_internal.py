"""Where tools find the token of the stack that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests import internal


@pytest.fixture(autouse=True)
def _nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_variable_comes_before_the_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "internal-token").write_text("of-the-stack\n")
    (tmp_path / "token").write_text("of-the-file\n")
    found = {"DATA_DIR": "data"}
    assert internal.headers(found) == {"authorization": "Bearer of-the-stack"}
    found["INTERNAL_TOKEN_FILE"] = str(tmp_path / "token")
    assert internal.headers(found) == {"authorization": "Bearer of-the-file"}
    found["INTERNAL_TOKEN"] = "of-the-variable"
    assert internal.headers(found) == {"authorization": "Bearer of-the-variable"}


def test_no_stack_and_the_word_none_are_no_header() -> None:
    assert internal.headers({}) == {}
    assert internal.headers({"INTERNAL_TOKEN": "none"}) == {}
