"""The model's process reports to nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.retrieval.minilm import ModelUnusable, find_model

LOAD = "from services.retrieval.minilm import MiniLM, find_model; MiniLM(find_model())"


def test_onnxruntime_reports_its_use_to_nobody(tmp_path: Path) -> None:
    """It keeps an identifier and a database of events in the home folder, unless it is told not to report."""
    try:
        find_model()
    except ModelUnusable as error:
        pytest.skip(str(error))
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr, list(tmp_path.iterdir())) == ("", "", [])
