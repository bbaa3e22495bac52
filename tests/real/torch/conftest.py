"""The tiny model, made once for all tests of this folder; they are skipped where the extra `torch` is not installed."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models made by tests are kept."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_folder(model_cache: Path) -> Path:
    from services.worker.engines.torch import loading, tiny

    loading.quiet()
    gc.freeze()  # torch's many objects are here to stay: collecting them at each engine's end would take a minute
    return tiny.build(model_cache)
