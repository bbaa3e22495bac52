"""promtool takes the example's configuration, and its alerts do what their tests say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from loadtests.paths import ROOT

PROMTOOL = shutil.which("promtool")
EXAMPLE = ROOT / "deploy" / "examples" / "vllm"
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)")


def promtool(*words: str, folder: Path) -> None:
    done = subprocess.run([str(PROMTOOL), *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_configuration_with_the_rules_that_it_names() -> None:
    promtool("check", "config", "prometheus.yml", folder=EXAMPLE)


def test_the_alerts_of_a_fleet_fire_when_they_should_and_are_silent_when_not() -> None:
    promtool("test", "rules", "fleet.promtool.yml", folder=Path(__file__).parent)
