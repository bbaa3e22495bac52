"""Calibration: an engine's speed is found from its steps, and nothing is written that would mislead."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.calibrate import calibrate, for_measurement, main, powers_of_two, write
from services.worker.config import WorkerSettings
from services.worker.engines.faults import FaultPlan, Faults
from services.worker.engines.simulated import LatencyModel, SimulatedEngine
from services.worker.fitting import CannotFit, Fit, Point, fit, typical
from tests.worker.contract.engines import Sizes, torch


def engine(latency: LatencyModel, *, slots: int = 8, plan: FaultPlan | None = None, **sizes: int) -> SimulatedEngine:
    chance = random.Random(1)
    faults = Faults(plan or FaultPlan(), chance=chance)
    sizes = {"kv_tokens": 65_536} | sizes
    return SimulatedEngine(model="m", slots=slots, latency=latency, chance=chance, faults=faults, **sizes)


def is_the_line(found: Fit, step_ms: float, per_sequence_ms: float, prefill_ms_per_token: float, rel: float) -> bool:
    expected = pytest.approx((step_ms, per_sequence_ms, prefill_ms_per_token), rel=rel, abs=1e-9)
    return (found.step_ms, found.per_sequence_ms, found.prefill_ms_per_token) == expected


@pytest.mark.parametrize("slots", [2, 8, 33])
@pytest.mark.parametrize("chunk_tokens", [0, 7, 100])
def test_the_speed_of_an_engine_is_found_exactly(slots: int, chunk_tokens: int):
    sim = engine(LatencyModel(20, 0.5, 0.1), slots=slots, prefill_chunk_tokens=chunk_tokens)
    found = calibrate(sim, repeats=3).fit
    assert is_the_line(found, 20, 0.5, 0.1, rel=1e-6)
    assert found.worst_residual < 1e-6
    assert found.r_squared > 0.999999


def test_the_speed_of_an_engine_with_jitter_is_found_within_one_percent():
    found = calibrate(engine(LatencyModel(20, 2, 0.1, jitter=0.05)), repeats=300).fit
    assert is_the_line(found, 20, 2, 0.1, rel=0.01)
    assert 0 < found.worst_residual < 0.02


def test_an_engine_of_little_memory_is_measured_with_as_many_as_fit_and_left_empty():
    sim = engine(LatencyModel(5, 1, 0.2), slots=16, kv_tokens=600, context_tokens=200)
    assert is_the_line(calibrate(sim, repeats=3).fit, 5, 1, 0.2, rel=1e-6)
    assert (sim.running, sim.kv_usage) == (0, 0)


def test_the_first_round_only_warms_up():
    three, six = (calibrate(engine(LatencyModel(5, 1, 0.2)), repeats=repeats).steps for repeats in (3, 6))
    assert six == 2 * three


def test_an_engine_of_a_tiny_context_is_refused():
    with pytest.raises(CannotFit, match="context is too short"):
        calibrate(engine(LatencyModel(5, 1, 0.2), context_tokens=8), repeats=3)


def test_with_one_slot_a_sequence_costs_what_a_step_costs():
    found = calibrate(engine(LatencyModel(20, 2, 0.1), slots=1), repeats=3).fit
    assert is_the_line(found, 22, 0, 0.1, rel=1e-6)


def test_one_disturbed_step_of_a_kind_is_outvoted():
    samples = {(n, p): [10.0 + n + p / 10] * 4 + [1000.0] for n in (1, 4, 8) for p in (0, 64)}
    assert is_the_line(fit(typical(samples)), 10, 1, 0.1, rel=1e-6)


def test_a_kind_of_step_that_was_hardly_seen_does_not_count():
    assert typical({(1, 0): [1.0, 1.0], (2, 0): [3.0, 1.0, 2.0]}) == [Point(2, 0, 2.0)]


@given(st.floats(0.1, 100), st.floats(0, 10), st.floats(0, 1))
def test_any_speed_is_found(step_ms: float, per_sequence_ms: float, prefill_ms_per_token: float):
    points = [
        Point(n, p, step_ms + per_sequence_ms * n + prefill_ms_per_token * p) for n in (1, 3, 8) for p in (0, 16, 99)
    ]
    found = fit(points)
    assert found.worst_residual < 1e-6
    assert min(found.step_ms, found.per_sequence_ms, found.prefill_ms_per_token) >= 0


def test_a_cost_that_noise_made_slightly_negative_is_none():
    points = [Point(n, p, 10 - 0.01 * n + 0.1 * p) for n in (1, 4, 8) for p in (0, 64)]
    found = fit(points)
    assert found.per_sequence_ms == 0
    assert is_the_line(found, 10, 0, 0.1, rel=0.01)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([Point(1, 0, 10), Point(2, 0, 11), Point(1, 8, 12)], "only 3 kinds of steps"),
        ([Point(n, 0, 10 + n) for n in range(1, 9)], "prompts of several lengths"),
        ([Point(n, p, 30 - 3 * n + p) for n in (1, 4, 8) for p in (0, 64)], "each running sequence made steps 3 ms"),
        ([Point(n, p, 30 + n - 0.2 * p) for n in (1, 4, 8) for p in (0, 64)], "each prompt token made steps 0.2 ms"),
        ([Point(n, p, 100 if n == 4 else 10) for n in (1, 4, 8) for p in (0, 64)], "the best line is off by"),
        ([Point(n, p, 0) for n in (1, 4, 8) for p in (0, 64)], "took no time"),
    ],
    ids=["few", "no prompts", "falling with n", "falling with prompts", "no line", "no time"],
)
def test_what_would_mislead_is_refused_with_the_reason(points: list[Point], message: str):
    with pytest.raises(CannotFit, match=message):
        fit(points)


def test_an_engine_that_hangs_is_not_to_be_measured():
    with pytest.raises(CannotFit, match="never ended"):
        calibrate(engine(LatencyModel(20, 2, 0.1), plan=FaultPlan(hang_after_tokens=1)), repeats=3)


@pytest.mark.parametrize(("least", "most", "numbers"), [(1, 8, [1, 2, 4, 8]), (1, 6, [1, 2, 4, 6]), (16, 5, [5])])
def test_sizes_are_doubled_up_to_the_last(least: int, most: int, numbers: list[int]):
    assert list(powers_of_two(least, most)) == numbers


def test_the_settings_say_whose_speed_they_are():
    measured = calibrate(engine(LatencyModel(20, 0.5, 0.1)), repeats=3)
    lines = measured.settings(device="cpu", date="2026-01-31").splitlines()
    assert lines[0].startswith("# ")
    assert "2026-01-31" in lines[0]
    assert lines[1] == "# engine simulated, model m, device cpu."
    assert lines[3:] == ["SIM_STEP_MS=20", "SIM_STEP_PER_SEQUENCE_MS=0.5", "SIM_PREFILL_MS_PER_TOKEN=0.1"]


def test_a_file_is_written_whole_and_over_the_old_one(tmp_path: Path):
    file = tmp_path / "speed.env"
    file.write_text("OLD=1\n")
    write(file, "NEW=1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["speed.env"]
    assert file.read_text() == "NEW=1\n"


def test_the_command_measures_the_engine_of_the_settings_and_writes_its_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SIM_STEP_MS", "7")
    assert main(["--repeats", "3", "--write", str(tmp_path / "speed.env")]) == 0
    assert "SIM_STEP_MS=7\n" in (tmp_path / "speed.env").read_text()
    assert main(["--repeats", "3", "--write", str(tmp_path / "speed.env")]) == 0, "its own file is written over"
    assert main(["--repeats", "3"]) == 0
    assert capsys.readouterr().out == (tmp_path / "speed.env").read_text()


def test_long_chunks_are_measured_unless_their_length_is_set():
    assert for_measurement(WorkerSettings()).prefill_chunk_tokens == 256
    assert for_measurement(WorkerSettings(prefill_chunk_tokens=7)).prefill_chunk_tokens == 7


def test_a_clock_counts_instead_of_what_the_engine_says():
    times = itertools.count(0, 0.004)  # read before and after a step
    with pytest.raises(CannotFit, match="took no time"):
        calibrate(engine(LatencyModel(20, 2, 0.1)), repeats=3, clock=lambda: 1.0)
    found = calibrate(engine(LatencyModel(20, 2, 0.1)), repeats=3, clock=lambda: next(times)).fit
    assert is_the_line(found, 4, 0, 0, rel=1e-6)


def test_a_real_model_is_measured_like_any_engine(tmp_path: Path):
    make = torch(tmp_path)
    times = itertools.count(0, 0.004)
    model = make(Sizes(slots=2, kv_tokens=256, context_tokens=128, prefill_chunk_tokens=16))
    found = calibrate(model, repeats=3, clock=lambda: next(times))
    assert (found.engine, model.running, model.kv_usage) == ("torch", 0, 0)
    assert is_the_line(found.fit, 4, 0, 0, rel=1e-6)
    model.close()


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(["--write", str(tmp_path / "none" / "speed.env")])
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["KEEP=1\n", ""])
def test_a_file_that_holds_something_else_is_left_alone(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / ".env"
    file.write_text(content)
    with pytest.raises(SystemExit):
        main(["--repeats", "3", "--write", str(file)])
    assert "it holds something else" in capsys.readouterr().err
    assert file.read_text() == content


def test_the_command_writes_nothing_when_nothing_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SIM_HANG_AFTER", "1")
    assert main(["--repeats", "3", "--write", str(tmp_path / "speed.env")]) == 1
    assert "calibrate: nothing was written: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
