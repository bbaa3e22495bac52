"""A worker's settings: the fixed names, and combinations that cannot work."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.worker.app import build
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
        WorkerSettings(sim_step_ms=0, sim_step_per_sequence_ms=0, sim_kv_tokens=1024, max_batch_size=64)
    assert "a step must take some time" in str(faults.value)
    assert "at least 8192" in str(faults.value)
