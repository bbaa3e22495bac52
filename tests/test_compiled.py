"""The compiled core is taken only where it was made from the sources that are here, and what is wrong is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from services import compiled


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one module, which has not been compiled."""
    folder = tmp_path / "core"
    (folder / "compiled").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "queue.py").write_text("LENGTH = 1\n", encoding="utf-8")
    monkeypatch.setattr(compiled, "CORE", folder)
    monkeypatch.setattr(compiled, "FOLDER", folder / "compiled")
    monkeypatch.setattr(compiled, "STAMP", folder / "compiled" / "made-from")
    monkeypatch.setattr(compiled, "_load_library", lambda: None)
    monkeypatch.delenv("WEIR_CODE", raising=False)
    return folder


def stamp(digest: str) -> None:
    compiled.STAMP.write_text(digest + "\n", encoding="ascii")


def test_without_compiled_modules_the_sources_are_used(core: Path) -> None:
    assert compiled.core_path([str(core)]) == [str(core)]


def test_modules_compiled_from_these_sources_come_first(core: Path) -> None:
    stamp(compiled.digest())
    assert compiled.core_path([str(core)]) == [str(core / "compiled"), str(core)]


def test_modules_compiled_from_other_sources_are_not_used_and_a_warning_says_so(core: Path) -> None:
    stamp(compiled.digest())
    (core / "queue.py").write_text("LENGTH = 2\n", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="compiled from other sources.*run `weir compile`"):
        assert compiled.core_path([str(core)]) == [str(core)]


def test_the_sources_can_be_chosen_in_any_case(core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp(compiled.digest())
    monkeypatch.setenv("WEIR_CODE", "python")
    assert compiled.core_path([str(core)]) == [str(core)]


@pytest.mark.parametrize("digest", ["", "of other sources"])
def test_where_compiled_modules_are_demanded_their_lack_is_an_error(
    core: Path, monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    if digest:
        stamp(digest)
    monkeypatch.setenv("WEIR_CODE", "compiled")
    with pytest.raises(ImportError, match="run `weir compile`"):
        compiled.core_path([str(core)])


def test_an_unknown_choice_is_an_error_that_names_the_others(core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CODE", "fast")
    with pytest.raises(ImportError, match="WEIR_CODE=fast: expected one of auto, python, compiled"):
        compiled.core_path([str(core)])
