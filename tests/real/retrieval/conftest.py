"""What the tests of retrieval share, here and in the gate."""

from __future__ import annotations

from tests.retrieval.conftest import model

__all__ = ["model"]
