"""The bundled model is loaded only as its publisher gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.retrieval import bundled, modelfolder
from services.retrieval.minilm import MiniLM
from services.retrieval.modelfolder import BUNDLED, ModelUnusable
from tests.retrieval.models import variant


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """The installed model's package as another release of it would be: its files may be exchanged."""
    return variant(model, tmp_path / BUNDLED / "model", {})


def exchange(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


def test_the_installed_model_is_as_published(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundled.main() == 0
    assert capsys.readouterr().out == "embedder: 8 files of all-MiniLM-L6-v2 are as published\n"


def test_every_file_that_is_read_of_a_model_is_compared() -> None:
    """What a folder's small files say is computed as well: a changed one changes every vector."""
    package = Path(modelfolder.__file__).parent
    code = "".join((package / name).read_text(encoding="utf-8") for name in ("modelfolder.py", "minilm.py"))
    read = set(re.findall(r'"((?:\w+/)?\w+\.(?:json|safetensors|txt))"', code))
    assert read
    assert read <= bundled.PUBLISHED.keys()


@pytest.mark.parametrize("name", sorted(bundled.PUBLISHED))
def test_a_bundled_model_with_another_file_is_refused_and_the_file_named(copy: Path, name: str) -> None:
    exchange(copy / name, b"{}")
    with pytest.raises(ModelUnusable) as refused:
        MiniLM(copy)
    empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # sha256 of {}
    assert f"{copy / name} has SHA-256 {empty}, and {bundled.PUBLISHED[name]} is published" in str(refused.value)
    assert "EMBED_MODEL_PATH" in str(refused.value)


def test_all_files_that_differ_are_named_at_once(copy: Path) -> None:
    exchange(copy / "config.json", b"{}")
    (copy / "vocab.txt").unlink()
    with pytest.raises(ModelUnusable, match=r"config\.json has SHA-256 .*vocab\.txt cannot be read: No such file"):
        bundled.check(copy)


def test_a_model_of_ones_own_is_not_compared(model: Path, tmp_path: Path) -> None:
    folder = variant(model, tmp_path / "mine", {"sentence_bert_config.json": {"max_seq_length": 128}})
    bundled.check(folder)
    assert MiniLM(folder).name == "mine"
