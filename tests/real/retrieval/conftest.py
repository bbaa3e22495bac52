"""What the tests of retrieval share."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.retrieval.minilm import ModelUnusable, find_model


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of the installed embedder."""
    try:
        return find_model()
    except ModelUnusable as error:
        pytest.skip(str(error))
