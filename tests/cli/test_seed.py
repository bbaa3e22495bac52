"""The first corpus: what the ingester tells becomes progress and a few words."""

from __future__ import annotations

from pathlib import Path

from services.cli import seed


def test_a_corpus_that_is_not_wanted_or_not_there_is_no_fault(tmp_path: Path) -> None:
    assert seed.no_corpus("none") == "SEED_CORPUS=none"
    assert "no folder" in seed.no_corpus(str(tmp_path / "nowhere"))
    assert seed.no_corpus(str(tmp_path)) == ""
