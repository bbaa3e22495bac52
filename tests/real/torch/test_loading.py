"""A model that cannot be had, or cannot be batched, is refused with a sentence that says what to do."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `torch`")
pytest.importorskip("transformers", reason="needs the extra `torch`")

import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from services.worker.engine import Expected
from services.worker.engine_executor import EngineUnusable
from services.worker.engines.torch import device, loading, sizing
from services.worker.engines.torch.loading import load
from services.worker.engines.torch.spec import TorchSpec
from tests.real.torch.rig import Plain, join, make_engine, prompt_of, run


@pytest.fixture
def copied(tiny_folder: Path, tmp_path: Path) -> Path:
    """A model folder that a test may break."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def reconfigure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refused(folder: Path | str, **changes: Any) -> str:
    with pytest.raises(EngineUnusable) as error:
        make_engine(Path(folder), **({"model_id": str(folder)} | changes))
    return str(error.value)


def test_the_tiny_model_is_made_and_loaded_by_its_name_and_says_how(model_cache: Path) -> None:
    engine = load(TorchSpec(cache_dir=str(model_cache), device="cpu", kv_tokens=1000, warm_up=False))
    assert engine.model == "tiny"
    how = "0/8 slots, context 1000, chunks of 128, 0/1000 KV tokens reserved, 0% used"
    assert repr(engine) == f"<TorchEngine tiny on cpu in float32, {how}>"


def test_a_warm_up_measures_what_to_expect_and_leaves_the_engine_empty(model_cache: Path, tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder, warm_up=True, prefill_chunk_tokens=0)
    assert engine.expected != Expected()
    assert engine.expected.step_ms > 0
    assert 16 <= engine.prefill_chunk_tokens <= 512
    assert (engine.running, engine.kv_usage) == (0, 0.0)
    assert engine._reserved_tokens == 0


def test_a_warm_up_fits_into_little_memory(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder, warm_up=True, prefill_chunk_tokens=0, kv_tokens=40, slots=8)
    assert engine.kv_usage == 0.0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nothing")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "no config.json" in refused(tmp_path)


def test_a_name_that_is_none(tmp_path: Path) -> None:
    assert "neither a folder nor a name on the hub" in refused("no/such/thing", cache_dir=str(tmp_path))


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def unreachable(*arguments: Any, **options: Any) -> str:
        asked.append((arguments, options["revision"], options["cache_dir"]))
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(loading.huggingface_hub, "snapshot_download", unreachable)
    message = refused("some/model", cache_dir=str(tmp_path), revision="v2")
    assert asked == [(("some/model",), "v2", tmp_path)]
    assert "cannot be reached" in message
    assert "MODEL_ID=tiny" in message


def test_a_name_or_revision_that_the_hub_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> str:
        raise OSError("404 Client Error: revision not found\nmore lines")

    monkeypatch.setattr(loading.huggingface_hub, "snapshot_download", missing)
    message = refused("some/model", cache_dir=str(tmp_path), revision="v2")
    assert "MODEL_REVISION=v2" in message
    assert "404" in message
    assert "\n" not in message


def test_a_download_is_loaded_like_a_folder(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.huggingface_hub, "snapshot_download", lambda *_, **__: str(tiny_folder))
    engine = make_engine(tiny_folder, model_id="some/model", cache_dir=str(tmp_path))
    assert engine.model == "some/model"


def test_pickled_weights_are_not_loaded(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    (copied / "pytorch_model.bin").write_bytes(b"anything")
    assert "pickle" in refused(copied)


def test_no_weights_at_all(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    assert "it has no weights" in refused(copied)


def test_weights_that_are_cut_short(copied: Path) -> None:
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert "cannot be loaded" in refused(copied)


def test_weights_that_lack_a_layer(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    assert "model.layers.2.mlp.up_proj.weight" in refused(copied)


def test_code_that_comes_with_a_model_is_not_run(copied: Path) -> None:
    (copied / "mine.py").write_text("raise SystemExit('ran')")
    reconfigure(copied, model_type="mine", auto_map={"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"})
    assert "needs custom code" in refused(copied)


def test_a_kind_of_model_that_nobody_knows(copied: Path) -> None:
    reconfigure(copied, model_type="unheard-of")
    assert "unheard-of" in refused(copied)


def test_a_model_that_does_not_write_text(copied: Path) -> None:
    reconfigure(copied, model_type="vit")
    assert "does not write text" in refused(copied)


def test_a_model_whose_memory_has_no_pages(copied: Path) -> None:
    config = transformers.MambaConfig(vocab_size=2048, hidden_size=32, num_hidden_layers=1)
    transformers.MambaForCausalLM(config).save_pretrained(copied)
    assert "cannot be batched continuously" in refused(copied)


def test_a_model_that_ignores_its_pages_is_found_out(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget = transformers.models.llama.modeling_llama.LlamaAttention.forward

    def forgets(self: Any, *arguments: Any, cache: Any = None, **options: Any) -> Any:
        if cache is None:
            return forget(self, *arguments, **options)
        rows = options["hidden_states"].shape[1]
        options["attention_mask"] = options["attention_mask"][..., -rows:]
        return forget(self, *arguments, **options)

    monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaAttention, "forward", forgets)
    assert "its output with paged memory differs" in refused(tiny_folder)


@pytest.mark.parametrize("wanted", ["cuda", "cuda:7", "tpu"])
def test_a_device_that_is_not_there(tiny_folder: Path, wanted: str) -> None:
    if wanted == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    message = refused(tiny_folder, device=wanted)
    assert f"DEVICE={wanted}" in message
    assert "There is cpu" in message


class Gpus:
    """A machine with two GPUs, as far as choosing is concerned."""

    def __init__(self, patch: pytest.MonkeyPatch, *, bf16: bool) -> None:
        self.current: torch.device | None = None
        self.plans = True
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)
        patch.setattr(torch.cuda, "get_device_name", lambda which: "an older GPU")
        patch.setattr(torch.cuda, "set_device", self._set)
        patch.setattr(torch.backends.cuda, "enable_cudnn_sdp", self._let_plan)

    def _set(self, which: torch.device) -> None:
        self.current = which

    def _let_plan(self, enabled: bool) -> None:
        self.plans = enabled


@pytest.mark.parametrize(
    ("wanted", "chosen"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_devices_are_chosen_by_name_and_the_first_gpu_by_default(
    monkeypatch: pytest.MonkeyPatch, wanted: str, chosen: str
) -> None:
    gpus = Gpus(monkeypatch, bf16=True)
    assert str(device.choose_device(wanted)) == chosen
    assert str(gpus.current) == (chosen if chosen != "cpu" else "None")


@pytest.mark.parametrize(("wanted", "plans"), [("cuda", False), ("cpu", True)])
def test_on_a_gpu_attention_needs_no_plan_for_each_shape_since_each_step_has_another(
    monkeypatch: pytest.MonkeyPatch, wanted: str, plans: bool
) -> None:
    gpus = Gpus(monkeypatch, bf16=True)
    device.choose_device(wanted)
    assert gpus.plans is plans


@pytest.mark.parametrize(
    ("where", "bf16", "wanted", "chosen"),
    [
        ("cuda:0", True, "auto", torch.bfloat16),
        ("cuda:0", False, "auto", torch.float16),
        ("cpu", False, "auto", torch.float32),
        ("cpu", False, "float32", torch.float32),
        ("cuda:0", False, "float32", torch.float32),
    ],
)
def test_number_formats_are_chosen_by_a_table(
    monkeypatch: pytest.MonkeyPatch, where: str, bf16: bool, wanted: str, chosen: torch.dtype
) -> None:
    Gpus(monkeypatch, bf16=bf16)
    assert device.choose_dtype(wanted, torch.device(where)) == chosen


def test_a_number_format_that_the_device_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpus(monkeypatch, bf16=False)
    with pytest.raises(EngineUnusable, match="an older GPU cannot; take float16"):
        device.choose_dtype("bfloat16", torch.device("cuda:0"))
    with pytest.raises(EngineUnusable, match="one of auto, float32"):
        device.choose_dtype("int4", torch.device("cpu"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_number_formats_work_on_a_processor_or_are_refused_before_they_kill_it(
    tiny_folder: Path, dtype: str
) -> None:
    try:
        engine = make_engine(tiny_folder, dtype=dtype)
    except EngineUnusable as error:
        assert "does not support" in str(error)  # noqa: PT017 - the other outcome is right, too
        return
    join(engine, "r", prompt=prompt_of(40), max_tokens=5)
    assert run(engine).reasons == {"r": "length"}


def test_a_processor_that_dies_of_a_number_format_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.sys, "executable", "false")
    with pytest.raises(EngineUnusable, match="Use float32"):
        device.choose_dtype("bfloat16", torch.device("cpu"))


def test_weights_larger_than_the_memory_are_not_even_read(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda device: 2**20)
    message = refused(tiny_folder)
    assert "weights take" in message
    assert "GiB free" in message


def test_more_memory_than_there_is_for_prompts_and_answers(tiny_folder: Path) -> None:
    assert "Lower KV_TOKENS" in refused(tiny_folder, kv_tokens=2**36)


def test_memory_that_fails_to_come_although_it_looked_free(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "PagedBatch", fail)
    assert "lower KV_TOKENS" in refused(tiny_folder)


def test_a_context_longer_than_the_model_was_made_for(tiny_folder: Path) -> None:
    assert "supports 2048 tokens" in refused(tiny_folder, context_tokens=4096)


def test_a_shorter_context_is_kept_to(tiny_folder: Path) -> None:
    engine = make_engine(tiny_folder, context_tokens=100, slots=3)
    assert (engine.context_tokens, engine.kv_tokens) == (100, 300)


def test_automatic_memory_is_no_more_than_its_share_of_what_is_free() -> None:
    config = transformers.LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    )
    spec, free = TorchSpec(slots=64), 8 * 2**30
    sizes = sizing.size(spec, config, torch.bfloat16, free, on_gpu=True)
    kept = sizes.pages * sizes.page_tokens * 2 * 8 * 64 * 2 * 16
    mask = sizes.step_tokens * (sizes.pages * sizes.page_tokens + sizes.step_tokens) * 2
    assert free * 0.35 < kept + mask <= free * 0.52
    assert sizes.kv_tokens < 64 * 8192
    assert sizes.pages >= sizes.kv_tokens / sizes.page_tokens + 64


def test_settings_that_make_no_sense_are_refused() -> None:
    for changes in ({"slots": 0}, {"threads": 0}, {"kv_tokens": -1}):
        with pytest.raises(ValueError, match="must"):
            TorchSpec(**changes)


def test_a_model_of_another_family_with_another_attention_is_batched_as_well(copied: Path) -> None:
    """Gemma 2: sliding windows, scores capped, no `sdpa`; so its memory is of two kinds and its attention eager."""
    config = transformers.Gemma2Config(
        vocab_size=2048, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=128, max_position_embeddings=512, sliding_window=32, eos_token_id=1, bos_token_id=0,
        pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.Gemma2ForCausalLM(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.1)
    model.save_pretrained(copied)
    engine, plain = make_engine(copied, slots=2), Plain(copied)
    prompts = {"short": prompt_of(10), "long": prompt_of(90, 5)}
    for id, prompt in prompts.items():
        join(engine, id, prompt=prompt, max_tokens=15)
    record = run(engine)
    assert {id: record.pieces[id] for id in prompts} == {id: plain.pieces(prompts[id], 15) for id in prompts}


@pytest.mark.parametrize(
    ("limit", "left"),
    [("1000\n", 400), ("500", 0), ("max\n", sys.maxsize), ("", sys.maxsize)],
    ids=["limited", "over its limit", "unlimited", "unreadable"],
)
def test_a_containers_memory_is_what_its_limit_leaves(limit: str, left: int, tmp_path: Path):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("600\n")
    assert device._container_available(tmp_path) == left
    assert device._container_available(tmp_path / "nowhere") == sys.maxsize
