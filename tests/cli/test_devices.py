"""Which worker computes where, decided without torch; and what is told when it cannot be."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli import calibrate, devices, parts
from services.cli.config import LabSettings
from services.cli.devices import Device, names, place
from services.cli.errors import LabError


def settings(tmp_path: Path, **chosen: Any) -> LabSettings:
    return LabSettings(_env_file=None, **{"data_dir": tmp_path, **chosen})  # type: ignore[call-arg]


def answering(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "") -> list[list[str]]:
    """In place of the process that asks torch: these are its words. What was asked."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, stdout, stderr)

    monkeypatch.setattr(devices.subprocess, "run", run)
    return asked


@given(st.sampled_from(["auto", "cuda"]), st.integers(1, 64), st.integers(1, 16))
def test_replicas_go_round_the_devices_by_index(device: str, count: int, there: int) -> None:
    placed = place([device], count, there)
    assert placed == [f"cuda:{index % there}" for index in range(count)]


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu", "cuda:1"])
def test_without_a_device_to_choose_every_worker_is_told_what_was_said(device: str) -> None:
    assert place(names(device), 3) == [device] * 3


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_device_that_was_named_is_not_chosen_again(device: str) -> None:
    assert place(names(device), 2, 8) == [device] * 2


def test_a_list_is_taken_in_turn() -> None:
    assert place(names("cuda:0, cuda:2"), 5, 8) == ["cuda:0", "cuda:2", "cuda:0", "cuda:2", "cuda:0"]


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:", "cuda:0,", "0", "cuda:0 cuda:1"])
def test_what_is_no_device_is_named(device: str) -> None:
    with pytest.raises(LabError, match="none of auto, cpu, cuda"):
        names(device)


def test_torch_is_only_asked_where_the_answer_changes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, json.dumps([["H200", 150 << 30], ["H200", 150 << 30]]))
    real = {"engine": "torch", "device": "cuda"}
    assert asyncio.run(devices.placed(settings(tmp_path, workers_count=3))) == []
    assert asyncio.run(devices.placed(settings(tmp_path, **real, workers_count=1))) == ["cuda"]
    assert asyncio.run(devices.placed(settings(tmp_path, engine="torch", device="cpu"))) == ["cpu", "cpu"]
    assert asked == []
    assert asyncio.run(devices.placed(settings(tmp_path, **real, workers_count=3))) == ["cuda:0", "cuda:1", "cuda:0"]
    assert len(asked) == 1


def test_devices_are_shown_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, json.dumps([["NVIDIA H200", 139 << 30]]))
    assert devices.ask() == [Device("NVIDIA H200", 139 << 30)]
    assert str(devices.ask()[0]) == "NVIDIA H200 (139 GiB)"


def test_a_torch_that_cannot_be_asked_is_one_sentence_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "", "Traceback\nImportError: libcudart.so: no such file")
    with pytest.raises(LabError, match="make torch") as caught:
        devices.ask()
    assert "libcudart" in caught.value.notes[-1]


def test_nothing_is_started_without_what_a_real_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed", lambda name: None)
    devices.refuse(settings(tmp_path))
    with pytest.raises(LabError, match="needs torch and transformers: `make torch`"):
        devices.refuse(settings(tmp_path, engine="torch"))


def test_a_device_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "installed", lambda name: "1.0")
    devices.refuse(settings(tmp_path, engine="torch", device="cuda:0,cuda:1"))
    with pytest.raises(LabError, match="DEVICE=gpu"):
        devices.refuse(settings(tmp_path, engine="torch", device="gpu"))


def test_a_worker_that_loads_a_model_learns_its_device_its_folder_and_gets_its_time(tmp_path: Path) -> None:
    chosen = settings(tmp_path, engine="torch", model_id="some/model", worker_port=8110, engine_start_s=900)
    first, second = parts.workers(chosen, ["cuda:0", "cuda:1"])
    assert first.env == {
        "WORKER_NAME": "worker-0",
        "WORKER_PORT": "8110",
        "METRICS_PORT": "9110",
        "HOST": "127.0.0.1",
        "METRICS_HOST": "127.0.0.1",
        "ENGINE": "torch",
        "DEVICE": "cuda:0",
        "MODEL_CACHE_DIR": str(tmp_path / "models"),
    }
    assert second.env["DEVICE"] == "cuda:1"
    assert (first.note, first.loads_s) == ("some/model on cuda:0", 900)
    mine = settings(tmp_path, engine="torch", model_cache_dir=str(tmp_path / "mine"))
    assert parts.workers(mine, ["cpu", "cpu"])[0].env["MODEL_CACHE_DIR"] == str(tmp_path / "mine")


def test_a_calibration_measures_the_first_device_with_the_stacks_models(tmp_path: Path) -> None:
    assert calibrate.own(settings(tmp_path)) == {}
    assert calibrate.own(settings(tmp_path, engine="torch", device="cuda:1,cuda:2")) == {
        "DEVICE": "cuda:1",
        "MODEL_CACHE_DIR": str(tmp_path / "models"),
    }
