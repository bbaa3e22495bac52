"""A seed is the same run in every process: not the order of a hash, an address or an import decides anything."""

from __future__ import annotations

import os
import subprocess
import sys

SEEDS = ("3", "12")


def summary(seed: str, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.world", "--seed", seed, "--size", "200"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_seed_has_one_digest_whatever_the_hash_seed() -> None:
    for seed in SEEDS:
        assert summary(seed, "1") == summary(seed, "2")


def test_a_trace_tells_times_who_and_what() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.world", "--seed", "3", "--size", "100", "--trace"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert any("client     ends" in line for line in lines)
    assert any("router     logs" in line and '"outcome":"served"' in line for line in lines)
    assert lines[-1].startswith("seed 3:")
