"""A worker's settings: the fixed names, and combinations that cannot work."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.worker.app import build, own_chance
from services.worker.config import WorkerSettings


def test_the_documented_defaults(monkeypatch: pytest.MonkeyPatch):
    for name in ("MAX_BATCH_SIZE", "BATCH_TIMEOUT_MS", "WORKER_QUEUE_SIZE", "BATCHING"):
        monkeypatch.delenv(name, raising=False)
    settings = WorkerSettings(_env_file=None)
    assert (settings.max_batch_size, settings.batch_timeout_ms, settings.worker_queue_size) == (8, 10, 8)
    assert (settings.batching, settings.worker_port, settings.metrics_port) == ("continuous", 8010, 9010)


def test_the_environment_names_are_the_fields_in_capitals(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MAX_BATCH_SIZE", "3")
    monkeypatch.setenv("BATCHING", "static")
    process = build(WorkerSettings(_env_file=None))
    process.log.close()
    assert WorkerSettings(_env_file=None).max_batch_size == 3


def test_combinations_that_cannot_work_are_all_named():
    with pytest.raises(ValidationError) as faults:
        WorkerSettings(_env_file=None, sim_step_ms=0, sim_step_per_sequence_ms=0, kv_tokens=64, max_context_tokens=100)
    for wrong in ("a step must take some time", "KV_TOKENS=64 could not", "MAX_CONTEXT_TOKENS=100 could not"):
        assert wrong in str(faults.value)


def test_a_simulated_step_longer_than_a_stall_is_refused_at_the_start():
    with pytest.raises(ValidationError, match="a simulated step may take 48 s and ENGINE_STALL_S=30"):
        WorkerSettings(_env_file=None, sim_slow_factor=1000)
    WorkerSettings(_env_file=None, sim_slow_factor=1000, engine_stall_s=60)


@pytest.mark.parametrize(
    ("settings", "announced"),
    [
        ({}, "weir-sim"),
        ({"engine": "torch"}, "weir-tiny"),
        ({"engine": "torch", "model_id": "Qwen/Qwen3-0.6B"}, "Qwen3-0.6B"),
        ({"engine": "torch", "model_id": "models/mine/"}, "mine"),
        ({"engine": "torch", "model_name": "house"}, "house"),
    ],
)
def test_the_announced_model_is_the_one_that_runs_unless_it_is_named(settings: dict[str, str], announced: str):
    assert WorkerSettings(_env_file=None, **settings).announced_model == announced


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA"])
def test_a_device_that_no_engine_knows_is_refused_at_the_start(device: str):
    with pytest.raises(ValidationError):
        WorkerSettings(_env_file=None, device=device)


def test_replicas_draw_differently_and_each_the_same_at_every_start():
    first, again, other = (
        own_chance(WorkerSettings(_env_file=None, worker_name=name)).getrandbits(64) for name in ("a", "a", "b")
    )
    assert first == again != other
