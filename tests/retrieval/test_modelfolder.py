"""What a model's folder says is computed, or refused by name."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.retrieval.minilm import MiniLM
from services.retrieval.modelfolder import ModelUnusable, find_model, shape_of, tokenizer_digest
from services.retrieval.weights import read_safetensors
from tests.retrieval.minilm_reference import reference_vector
from tests.retrieval.models import CLS, variant

TEXT = "A weir holds a river at its level."


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"lacks config\.json, tokenizer\.json, model\.safetensors"):
        find_model(str(tmp_path))


def test_everything_that_is_wrong_with_an_encoder_is_told_at_once(tmp_path: Path) -> None:
    config = {"model_type": "bert", "hidden_size": 768, "hidden_act": "relu", "position_embedding_type": "relative_key"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnusable) as refused:
        MiniLM(tmp_path)
    for part in (
        "hidden_size is 768, and the database's column vectors.embedding holds vectors of 384 numbers",
        "hidden_act is 'relu', not 'gelu'",
        "position_embedding_type is 'relative_key', not 'absolute'",
        "config.json lacks num_hidden_layers",
    ):
        assert part in str(refused.value)


def test_a_model_that_takes_the_first_tokens_vector_is_another_model(model: Path, tmp_path: Path) -> None:
    first, mean = MiniLM(variant(model, tmp_path, CLS)), MiniLM(model)
    (vector,) = first.embed([first.tokenize(TEXT)])
    assert np.abs(vector - reference_vector(model, TEXT, pooling="cls")).max() < 1e-6
    assert first.fingerprint != mean.fingerprint
    assert first.tokenizer == mean.tokenizer


def test_as_many_layers_are_computed_as_the_folder_says(model: Path, tmp_path: Path) -> None:
    few = MiniLM(variant(model, tmp_path, {"config.json": {"num_hidden_layers": 2}}))
    (vector,) = few.embed([few.tokenize(TEXT)])
    assert np.abs(vector - reference_vector(model, TEXT, layers=2)).max() < 1e-6
    assert few.fingerprint != MiniLM(model).fingerprint


def test_the_installed_model_keeps_its_name_in_every_database(model: Path) -> None:
    """schema.sql names it so, for vectors that were made before they had a model's name."""
    assert MiniLM(model).fingerprint == "165fa9b8b5ce87cc"


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({}, "mean"),
        ({"1_Pooling/config.json": {"pooling_mode_mean_tokens": False}}, "mean"),
        ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, "cls"),
        ({"1_Pooling/config.json": {"pooling_mode": "mean"}}, "mean"),
        ({"config_sentence_transformers.json": {"prompts": {"query": "", "document": ""}}}, "mean"),
    ],
)
def test_how_a_text_is_pooled_is_read_in_both_forms(
    model: Path, tmp_path: Path, changes: dict[str, object], pooling: str
) -> None:
    assert shape_of(variant(model, tmp_path, changes)).pooling == pooling


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "sets a pooling other than mean or cls"),
        ({"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}, "sets a pooling other than mean or cls"),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True}}, "sets a pooling other than mean or cls"),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense"}]}, "modules.json has a step 'Dense'"),
        ({"config_sentence_transformers.json": {"prompts": {"query": "query: "}}}, "sets prompts before each text"),
        ({"config.json": ["a list"]}, "does not hold a JSON object"),
    ],
)
def test_what_is_not_computed_here_is_refused(
    model: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelUnusable, match=said):
        MiniLM(variant(model, tmp_path, changes))


def test_a_model_that_reads_less_is_read_less_of_and_is_refused_longer_chunks(model: Path, tmp_path: Path) -> None:
    short = variant(model, tmp_path, {"sentence_bert_config.json": {"max_seq_length": 128}})
    made = MiniLM(short)
    assert len(made.tokenize("overload " * 1000)) == 128
    assert made.fingerprint != MiniLM(model).fingerprint
    assert shape_of(short, chunk_tokens=126).max_tokens == 128
    with pytest.raises(ModelUnusable, match=r"CHUNK_TOKENS is 127, and the model in .* reads 126 tokens of a text"):
        shape_of(short, chunk_tokens=127)


def test_tokenizers_that_differ_only_in_padding_cut_the_same_chunks(model: Path, tmp_path: Path) -> None:
    padded = variant(model, tmp_path / "padded", {"tokenizer.json": {"padding": None, "truncation": None}})
    other = variant(model, tmp_path / "other", {"tokenizer.json": {"normalizer": None}})
    assert tokenizer_digest(padded) == tokenizer_digest(model) != tokenizer_digest(other)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_broken_file_is_named(model: Path, tmp_path: Path, name: str) -> None:
    folder = variant(model, tmp_path, {}, without=(name,))
    (folder / name).write_bytes(b"\xff not json")
    with pytest.raises(ModelUnusable, match=rf"{name}|the weights are damaged"):
        MiniLM(folder)


def tensors(file: Path, entries: dict[str, tuple[str, bytes, list[int]]]) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    raw = b""
    for name, (kind, data, shape) in entries.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(raw), len(raw) + len(data)]}
        raw += data
    encoded = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + raw)
    return file


def read(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        return read_safetensors(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def test_numbers_of_half_precision_are_widened_and_a_larger_models_names_shortened(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    brain = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # exact: these need no more bits
    file = tensors(
        tmp_path / "w",
        {
            "bert.a": ("F16", values.astype(np.float16).tobytes(), [2, 2]),
            "b": ("BF16", brain, [2, 2]),
            "c": ("F32", values.tobytes(), [4]),
            "embeddings.position_ids": ("I64", b"\0" * 8, [1]),
        },
    )
    made = read(file)
    assert set(made) == {"a", "b", "c"}
    assert all(np.array_equal(array.ravel(), values.ravel()) for array in made.values())
    assert {array.dtype.name for array in made.values()} == {"float32"}


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    file = tensors(tmp_path / "w", {"a": ("F32", b"\0" * 16, [4])})
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelUnusable, match="the weights are damaged: a is not as long"):
        read(file)


def test_weights_of_fewer_layers_than_the_folder_says_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"lack encoder\.layer\.6\.attention\.self\.query\.weight"):
        MiniLM(variant(model, tmp_path, {"config.json": {"num_hidden_layers": 7}}))
