"""What oracles make does not depend on the order of hash tables: processes with different hash seeds make the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = {
    "decisions": "from tests.oracles.decisions import texts; print(texts())",
    "wire": "from tests.oracles.wire.transcripts import texts; print(texts())",
    "views": "from tests.oracles.views import ORACLE; print(ORACLE.make())",
    "metrics": "from tests.oracles.metricnames import texts; print(texts())",
    "steps": "from loadtests.bench.counted import steps_a_request; print(steps_a_request())",
}


def made(script: str, seed: str) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_processes_with_different_hash_seeds_make_the_same(name: str) -> None:
    assert made(SCRIPTS[name], "1") == made(SCRIPTS[name], "2")
