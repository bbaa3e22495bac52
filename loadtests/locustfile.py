"""Locust's entry: `make load SCENARIO=burst`, or `locust -f loadtests/locustfile.py`. README.md says how to read it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # one package for Locust and the tests

from loadtests.users.playing import PlaceholderVisitor, Scenarios

__all__ = ["PlaceholderVisitor", "Scenarios"]
