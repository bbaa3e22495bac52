"""The process of the model refuses a bundle that is not its publisher's."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from services.retrieval.modelfolder import BUNDLED, ModelUnusable
from services.retrieval.modelprocess import ModelProcess
from tests.retrieval.models import variant


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """The installed model's package as another release of it would be: its files may be exchanged."""
    return variant(model, tmp_path / BUNDLED / "model", {})


def test_the_services_child_refuses_it_too(copy: Path) -> None:
    """One flipped bit of the weights is enough, and nothing else of the file is wrong."""
    weights = copy / "model.safetensors"
    source = weights.resolve()
    weights.unlink()
    shutil.copyfile(source, weights)
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    with pytest.raises(ModelUnusable, match=r"model\.safetensors has SHA-256"):
        asyncio.run(ModelProcess(copy, threads=1).load())
