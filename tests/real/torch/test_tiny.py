"""The tiny model is the same wherever and whenever it is made."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("transformers", reason="needs the extra `torch`")

from safetensors import safe_open
from transformers import AutoTokenizer

from services.worker.engines.torch import tiny
from tests.real.torch.rig import join, make_engine, prompt_of, run


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_it_is_made_the_same_twice(tiny_folder: Path, tmp_path: Path) -> None:
    assert digests(tiny.build(tmp_path)) == digests(tiny_folder)


def test_it_is_made_once_and_found_again(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "_write", lambda recipe, folder: pytest.fail("made again"))
    assert tiny.build(tiny_folder.parent) == tiny_folder


def test_it_is_small_and_holds_no_code(tiny_folder: Path) -> None:
    files = list(tiny_folder.iterdir())
    assert sum(file.stat().st_size for file in files) < 6 * 2**20
    assert {file.suffix for file in files} == {".json", ".jinja", ".safetensors"}


def test_its_weights_are_tied_and_of_the_recipes_size(tiny_folder: Path) -> None:
    with safe_open(tiny_folder / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        parameters = sum(weights.get_tensor(name).numel() for name in names)
    assert "lm_head.weight" not in names
    assert 0.9e6 < parameters < 1.3e6


def test_workers_that_start_together_make_it_twice_and_keep_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2)

    def write(recipe: tiny.Recipe, folder: Path) -> None:
        (folder / "config.json").write_text("whole")
        together.wait(10)

    monkeypatch.setattr(tiny, "_write", write)
    with ThreadPoolExecutor(2) as workers:
        folders = [each.result() for each in [workers.submit(tiny.build, tmp_path) for _ in range(2)]]
    assert folders[0] == folders[1]
    assert (folders[0] / "config.json").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [folders[0]]


def test_what_another_worker_made_meanwhile_is_used(tiny_folder: Path, tmp_path: Path) -> None:
    def write_late(recipe: tiny.Recipe, folder: Path) -> None:
        other = tmp_path / tiny_folder.name
        other.mkdir()
        (other / "config.json").write_text("theirs")
        (folder / "config.json").write_text("ours")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "_write", write_late)
        folder = tiny.build(tmp_path)
    assert (folder / "config.json").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_fault_while_making_it_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(recipe: tiny.Recipe, folder: Path) -> None:
        (folder / "half").write_text("of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(tiny, "_write", fail)
    with pytest.raises(OSError, match="space"):
        tiny.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_its_tokenizer_reads_any_text_and_writes_english_in_few_tokens(tiny_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    english = "A request that cannot be answered within its deadline is told so before it waits."
    assert len(tokenizer(english)["input_ids"]) < len(english) / 2.5
    for text in (english, "你好 🙂", "\x00\t\r\n", "ﷺ"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_another_recipe_is_another_folder() -> None:
    recipe = tiny.RECIPES["tiny"]
    assert len({each.digest() for each in tiny.RECIPES.values()}) == len(tiny.RECIPES)
    assert recipe.digest() == tiny.Recipe(hidden=128, layers=4, heads=4, kv_heads=2, wide=384).digest()


def test_it_writes_words_and_no_halves_of_characters(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder)
    for number in range(8):
        join(engine, f"r{number}", prompt=prompt_of(8, number), temperature=1.0, seed=number, max_tokens=40)
    record = run(engine)
    answers = [record.text(f"r{number}") for number in range(8)]
    assert len(set(answers)) == 8
    assert not any("\ufffd" in answer for answer in answers)
