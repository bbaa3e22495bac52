"""A small Llama with seeded random weights, built without a download: for tests, the offline demonstration,
measurements.

It has a byte-level BPE tokenizer trained on `corpus.txt`, a chat template, grouped-query attention and tied embeddings.
Its folder is named after the recipe's digest and renamed into place, so workers may build it at the same time.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FORMAT = 2  # raise it when the code below makes a different model from the same recipe
BEGIN, END = "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL = (BEGIN, END, *(f"<|{role}|>" for role in ROLES))
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user and assistant, not ' + message.role) }}"
    "{% endif %}"
    "{{ '<|' + message.role + '|>' + message.content + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
BYTES = slice(len(SPECIAL), len(SPECIAL) + 256)  # the single-byte tokens come first
RARE = 0.1  # small embeddings for bytes: the model writes words, not parts of characters
CORPUS = Path(__file__).with_name("corpus.txt")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines a model, to the byte."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    wide: int
    vocabulary: int = 2048
    context_tokens: int = 2048
    embedding_std: float = 0.3
    layer_std: float = 0.1
    seed: int = 1

    def digest(self) -> str:
        text = repr((FORMAT, sorted(asdict(self).items()), TEMPLATE, SPECIAL))
        return hashlib.sha256(text.encode() + CORPUS.read_bytes()).hexdigest()[:12]


RECIPES: dict[str, Recipe] = {
    "tiny": Recipe(hidden=128, layers=4, heads=4, kv_heads=2, wide=384),
    "tiny-5m": Recipe(hidden=256, layers=6, heads=8, kv_heads=4, wide=704),
    "tiny-30m": Recipe(hidden=512, layers=10, heads=8, kv_heads=4, wide=1408),
}
"""By MODEL_ID. The larger ones are for measurements."""


def build(cache_dir: Path, size: str = "tiny") -> Path:
    """The model's folder, built if it does not exist."""
    recipe = RECIPES[size]
    folder = cache_dir / f"{size}-{recipe.digest()}"
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f".{size}-", dir=cache_dir))
    try:
        _write(recipe, making)
        with suppress(OSError):  # another worker was first, with the same model
            making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def tokenizer(recipe: Recipe) -> Any:
    """A byte-level BPE, which can encode any text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(CORPUS.read_text(encoding="utf-8").splitlines(), trainer)
    trained.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, trained.token_to_id(BEGIN))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        chat_template=TEMPLATE,
        model_max_length=recipe.context_tokens,
    )


def model(recipe: Recipe) -> Any:
    """A Llama with weights from the recipe's seed. Norms stay 1."""
    config = LlamaConfig(
        vocab_size=recipe.vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.wide,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.context_tokens,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL.index(BEGIN),
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(END),
    )
    made = LlamaForCausalLM(config)
    chance = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for name, weights in _matrices(made):
            std = recipe.embedding_std if "embed" in name else recipe.layer_std
            weights.normal_(0.0, std, generator=chance)
        made.model.embed_tokens.weight[BYTES] *= RARE
    made.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return made


def _matrices(made: Any) -> Iterator[tuple[str, Any]]:
    for name, weights in sorted(made.named_parameters()):
        if weights.dim() > 1:
            yield name, weights


def _write(recipe: Recipe, folder: Path) -> None:
    tokenizer(recipe).save_pretrained(folder)
    model(recipe).save_pretrained(folder)
