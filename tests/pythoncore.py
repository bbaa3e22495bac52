"""Tests that replace parts of the hot path: mypyc's classes take no subclass of Python, and no other method."""

from __future__ import annotations

import pytest

from services import compiled

python_core = pytest.mark.skipif(compiled.in_use(), reason="it replaces parts of what is compiled here")
