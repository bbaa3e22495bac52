"""The contract of engines, of the torch engine: every test of `tests/worker/contract/`, with the tiny model."""

from __future__ import annotations

import pytest

from tests.worker.contract import test_answers, test_any_schedule, test_drop, test_memory, test_steps
from tests.worker.contract.conftest import examples, make, watch

__all__ = ["examples", "make", "name", "watch"]

pytest.importorskip("torch", reason="the extra `torch` is not installed: make torch")

for module in (test_answers, test_any_schedule, test_drop, test_memory, test_steps):
    for title, kept in vars(module).items():
        if title.startswith("test_"):
            assert title not in globals(), f"two tests of the contract are called {title}"
            globals()[title] = kept


@pytest.fixture(scope="session")
def name() -> str:
    """Of the engine that is tested."""
    return "torch"
