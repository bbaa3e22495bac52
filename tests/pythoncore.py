"""Tests that look inside the core's Python: mypyc's classes have no subclasses in Python, and no method is replaced."""

from __future__ import annotations

import pytest

import services.core  # noqa: F401  it chooses when it is imported
from services import compiled

python_core = pytest.mark.skipif(compiled.in_use(), reason="it replaces parts of the core, which is compiled here")
