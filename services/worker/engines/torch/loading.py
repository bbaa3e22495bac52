"""Make a `TorchEngine` from a `TorchSpec`, or raise EngineUnusable with one clear sentence.

Only safetensors are loaded, and code from the model's folder is never run. The chunk is bounded by the attention mask,
[step tokens, KV tokens + step tokens]: `sdpa` over pages puts all sequences in one row and masks the others' tokens.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from services.worker.engine_executor import EngineUnusable
from services.worker.engines.torch import tiny
from services.worker.engines.torch.device import choose_device, choose_dtype, free_bytes, reserved_bytes
from services.worker.engines.torch.engine import MIN_CHUNK_TOKENS, Limits, TorchEngine, is_out_of_memory
from services.worker.engines.torch.paged import PagedBatch
from services.worker.engines.torch.sizing import MemorySizes, size
from services.worker.engines.torch.spec import TorchSpec
from services.worker.engines.torch.text import Prompts, decoder
from services.worker.engines.torch.warmup import doubted, warm_up

DEFAULT_CACHE = Path("~/.cache/weir/models")
WANTED = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja"]
UNWANTED = ["original/*", "consolidated*", "onnx/*", "*.bin.index.json"]
PICKLES = ("*.bin", "*.pt", "*.pth")
GIB = 2**30
MAX_REASON_CHARS = 300


def load(spec: TorchSpec) -> TorchEngine:
    """Load the model and make the engine; takes as long as the model takes to load. Raises EngineUnusable."""
    quiet()
    torch.set_num_threads(spec.threads)
    device = choose_device(spec.device)
    dtype = choose_dtype(spec.dtype, device)
    folder = _folder(spec)
    _check_weights(folder, spec.model_id, dtype, device)
    model, tokenizer = _loaded(folder, spec.model_id, dtype, device)
    sizes = size(spec, model.config.get_text_config(), dtype, free_bytes(device), on_gpu=device.type == "cuda")
    engine = _engine(spec, model, tokenizer, sizes, where=f"{device} in {str(dtype).removeprefix('torch.')}")
    _try_out(engine, model, spec, sizes)
    return engine


def _engine(spec: TorchSpec, model: Any, tokenizer: Any, sizes: MemorySizes, *, where: str) -> TorchEngine:
    try:
        batch = PagedBatch(
            model, slots=spec.slots, pages=sizes.pages, page_tokens=sizes.page_tokens, step_tokens=sizes.step_tokens
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise EngineUnusable(
            f"{spec.model_id}: no memory for {sizes.kv_tokens} tokens ({error}); lower KV_TOKENS or MAX_BATCH_SIZE."
        ) from None
    except (ValueError, AttributeError, KeyError, NotImplementedError) as error:
        raise _unbatchable(spec.model_id, str(error)) from None
    return TorchEngine(
        model=spec.model_id,
        batch=batch,
        prompts=Prompts(tokenizer, sizes.context_tokens),
        decode=decoder(tokenizer),
        eos=_eos(model, tokenizer),
        limits=Limits(
            spec.slots,
            sizes.kv_tokens,
            sizes.context_tokens,
            spec.prefill_chunk_tokens or MIN_CHUNK_TOKENS,
            sizes.kv_bytes,
        ),
        chance=random.Random(spec.seed),
        where=where,
        gpu_bytes=partial(reserved_bytes, model.device),
    )


def _try_out(engine: TorchEngine, model: Any, spec: TorchSpec, sizes: MemorySizes) -> None:
    """Take a few steps, so that a model that cannot be batched fails now and not at the first request."""
    try:
        doubt = doubted(engine, model)
        if doubt:
            raise _unbatchable(spec.model_id, doubt)
        max_chunk_tokens = sizes.step_tokens - spec.slots
        warm_up(engine, chunk_tokens=spec.prefill_chunk_tokens, max_chunk_tokens=max_chunk_tokens, measure=spec.warm_up)
    except EngineUnusable:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise EngineUnusable(f"{spec.model_id}: no memory for a step; lower KV_TOKENS or MAX_BATCH_SIZE.") from None
        raise _unbatchable(spec.model_id, f"{type(error).__name__}: {error}") from error


def _folder(spec: TorchSpec) -> Path:
    cache = Path(spec.cache_dir).expanduser() if spec.cache_dir else DEFAULT_CACHE.expanduser()
    if spec.model_id in tiny.RECIPES:
        return _made(cache, spec.model_id)
    folder = Path(spec.model_id).expanduser()
    if folder.is_dir():
        return folder
    if spec.model_id.startswith((".", "/", "~")):
        raise EngineUnusable(f"MODEL_ID={spec.model_id}: no such folder.")
    return _downloaded(spec, cache)


def _made(cache: Path, size: str) -> Path:
    try:
        return tiny.build(cache, size)
    except OSError as error:
        raise EngineUnusable(f"MODEL_CACHE_DIR={cache}: the tiny model cannot be written there: {error}") from None


def _downloaded(spec: TorchSpec, cache: Path) -> Path:
    try:
        folder = huggingface_hub.snapshot_download(
            spec.model_id,
            revision=spec.revision,
            cache_dir=cache,
            allow_patterns=WANTED,
            ignore_patterns=UNWANTED,
        )
    except HFValidationError as error:
        raise EngineUnusable(f"MODEL_ID={spec.model_id}: neither a folder nor a name on the hub: {error}") from None
    except LocalEntryNotFoundError:
        raise EngineUnusable(
            f"MODEL_ID={spec.model_id}: the hub cannot be reached and the model is not in {cache}. "
            "Give a folder, or MODEL_ID=tiny, which needs no network."
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:MAX_REASON_CHARS]
        raise EngineUnusable(
            f"MODEL_ID={spec.model_id} at MODEL_REVISION={spec.revision}: it cannot be had: {reason}"
        ) from None
    return Path(folder)


def _check_weights(folder: Path, model_id: str, dtype: torch.dtype, device: torch.device) -> None:
    if not (folder / "config.json").is_file():
        raise EngineUnusable(f"MODEL_ID={model_id}: {folder} has no config.json, so it is not a model.")
    weights = [file for file in folder.glob("*.safetensors") if not file.name.startswith("consolidated")]
    if not weights:
        pickled = any(next(folder.glob(pattern), None) for pattern in PICKLES)
        why = "its weights are pickled, and loading a pickle runs code from it" if pickled else "it has no weights"
        raise EngineUnusable(f"MODEL_ID={model_id}: {why}. Only safetensors are loaded: convert it, or take another.")
    needed = sum(file.stat().st_size for file in weights)
    free = free_bytes(device)
    if needed > free:
        raise EngineUnusable(
            f"MODEL_ID={model_id}: its weights take {needed / GIB:.1f} GiB as {dtype} or so, and {device} has "
            f"{free / GIB:.1f} GiB free. Take a smaller model or another DEVICE."
        )


def _loaded(folder: Path, model_id: str, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    try:
        return _model(folder, model_id, dtype).to(device).eval(), _tokenizer(folder)
    except EngineUnusable:
        raise
    except Exception as error:  # a broken file can raise anything
        raise _unloadable(model_id, error) from error


def _model(folder: Path, model_id: str, dtype: torch.dtype) -> Any:
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise _unbatchable(model_id, f"a model of type {config.model_type!r} does not write text")
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation="sdpa" if kind._supports_sdpa else "eager",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would initialize them at random
        raise ValueError(f"{len(missing)} weights are missing, {missing[0]} is the first")
    return model


def _tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _unloadable(model_id: str, error: Exception) -> EngineUnusable:
    reason = str(error).strip() or type(error).__name__
    if is_out_of_memory(error):
        reason = f"there is not enough memory ({reason}); take a smaller model or another DEVICE"
    if "trust_remote_code" in reason or "custom code" in reason:
        reason = "it needs custom code, which Weir does not run; use a model that transformers supports"
    return EngineUnusable(f"MODEL_ID={model_id} cannot be loaded: {reason}")


def _unbatchable(model_id: str, reason: str) -> EngineUnusable:
    return EngineUnusable(f"MODEL_ID={model_id} cannot be batched continuously by transformers: {reason}")


def _eos(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends an answer; a model may have several."""
    named = model.generation_config.eos_token_id
    if named is None:
        named = tokenizer.eos_token_id
    if named is None:
        return ()
    return tuple(named) if isinstance(named, list) else (int(named),)


def quiet() -> None:
    """Turn off transformers' log output and progress bars: a worker logs JSON."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # also those of the hub
