"""The measured models, and engines around them. Everything about torch, devices and number formats is here.

The models are the project's own recipes with random weights, which do not change the cost of a step.
"""

from __future__ import annotations

import dataclasses
import math
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from loadtests.bench.batching.load import Ask
from services.contracts.generate import GenerateRequest
from services.worker.engines.torch import tiny
from services.worker.engines.torch.device import choose_device, choose_dtype
from services.worker.engines.torch.engine import Limits, TorchEngine
from services.worker.engines.torch.paged import PagedBatch
from services.worker.engines.torch.spec import TorchSpec
from services.worker.engines.torch.text import Prompts
from services.worker.engines.torch.warmup import warm_up

CACHE = Path("~/.cache/weir/models")
PAGE_TOKENS = 16
MAX_CHUNK_TOKENS = 512
PAD = 0  # masked, so its value does not matter

SIZES = {
    "tiny": tiny.RECIPES["tiny"],
    "5m": tiny.RECIPES["tiny-5m"],
    "30m": tiny.RECIPES["tiny-30m"],
    "1b": tiny.Recipe(
        hidden=2048, layers=16, heads=32, kv_heads=8, wide=8192, vocabulary=32_768, context_tokens=4096,
        embedding_std=0.02, layer_std=0.02,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    size: str
    folder: Path
    model: Any
    device: Any
    dtype: Any

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def exact(self) -> bool:
        """Whether batching must not change a token: so in float32."""
        return bool(self.dtype == torch.float32)

    @property
    def described(self) -> str:
        millions = sum(weights.numel() for weights in self.model.parameters()) / 1e6
        name = str(self.device) if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
        return f"{millions:,.0f} M parameters in {str(self.dtype).removeprefix('torch.')} on {name}"

    def engine(self, *, slots: int, context_tokens: int, chunk_tokens: int = 0) -> TorchEngine:
        """A warmed-up engine around this model, whose prompts and answers are written as token numbers."""
        max_tokens = max(chunk_tokens, MAX_CHUNK_TOKENS)
        kv_tokens = slots * context_tokens
        pages = math.ceil(kv_tokens / PAGE_TOKENS) + slots
        engine = TorchEngine(
            model=self.size,
            batch=PagedBatch(
                self.model, slots=slots, pages=pages, page_tokens=PAGE_TOKENS, step_tokens=slots + max_tokens
            ),
            prompts=Spelled(),
            decode=spelled,
            eos=(),
            limits=Limits(slots, kv_tokens, context_tokens, chunk_tokens or MAX_CHUNK_TOKENS),
            chance=random.Random(0),
        )
        warm_up(engine, chunk_tokens=chunk_tokens, max_chunk_tokens=max_tokens, measure=True)
        return engine

    def spec(self, *, slots: int, context_tokens: int) -> TorchSpec:
        """The specification of an engine that is loaded from the model's folder, here or in another process."""
        kv_tokens = slots * context_tokens
        dtype = str(self.dtype).removeprefix("torch.")
        return TorchSpec(
            str(self.folder), device=str(self.device), dtype=dtype, slots=slots, kv_tokens=kv_tokens,
            context_tokens=context_tokens,
        )  # fmt: skip

    def generate(self, asked: list[Ask]) -> list[tuple[int, ...]]:
        """Transformers' `generate` on one padded batch, as long as its longest answer; shorter ones are cut off."""
        width = max(len(ask.prompt) for ask in asked)
        ids = torch.tensor([[PAD] * (width - len(ask.prompt)) + list(ask.prompt) for ask in asked])
        mask = torch.tensor([[0] * (width - len(ask.prompt)) + [1] * len(ask.prompt) for ask in asked])
        longest = max(ask.length for ask in asked)
        config = GenerationConfig(max_new_tokens=longest, do_sample=False, eos_token_id=-1, pad_token_id=PAD)
        with torch.inference_mode():
            rows = self.model.generate(
                ids.to(self.device), attention_mask=mask.to(self.device), generation_config=config
            )[:, width:].tolist()
        if any(len(row) != longest for row in rows):
            raise RuntimeError("generate stopped early")
        return [tuple(row[: ask.length]) for row, ask in zip(rows, asked, strict=True)]

    def behind(self, ids: tuple[int, ...], token: int, best: int) -> float:
        """The difference of the logits of `best` and `token` after `ids`."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids], device=self.device)).logits[0, -1]
        return float(logits[best] - logits[token])


class Spelled(Prompts):
    """Prompts of token numbers, so that they have exactly the wanted length."""

    def __init__(self) -> None: ...

    def ids(self, request: GenerateRequest) -> list[int]:
        return [int(number) for number in (request.prompt or "").split()]


def spelled(ids: list[int]) -> str:
    return "".join(f"{number} " for number in ids)


def versions() -> str:
    return f"PyTorch {torch.__version__}, transformers {transformers.__version__}"


def chosen_device(wanted: str) -> Any:
    """`auto` is the GPU if there is one. A single thread: more gain little, and lose much on a busy machine."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return choose_device(wanted)


def subject(size: str, device: Any) -> Subject:
    """The model of this size, built if it is not in the cache."""
    dtype = choose_dtype("auto", device)
    folder = _folder(size, CACHE.expanduser(), dtype)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, use_safetensors=True, attn_implementation="sdpa", local_files_only=True
    )
    return Subject(size, folder, model.to(device).eval(), device, dtype)


def _folder(size: str, cache: Path, dtype: Any) -> Path:
    named = f"tiny-{size}" if size != "tiny" else size
    if named in tiny.RECIPES:
        return tiny.build(cache, named)
    recipe = SIZES[size]
    folder = cache / f"bench-{size}-{str(dtype).removeprefix('torch.')}-{recipe.digest()}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{size}-", dir=cache))
        try:
            tiny.tokenizer(dataclasses.replace(recipe, vocabulary=2048)).save_pretrained(making)
            tiny.model(recipe).to(dtype).save_pretrained(making)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder
