"""The router that the bench silences is silent: in a process of its own, which is silenced for good."""

from __future__ import annotations

import subprocess
import sys

SILENT = """
from loadtests.bench.silenced import Uncounted, Unwritten, silence
from services.router import app
from services.router.config import RouterSettings
from services.runtime.exposition import Registry
silence({"metrics", "journal", "log"})
built = app.build(RouterSettings(_env_file=None, router_port=0, metrics_port=0))
metrics, journal = app.RouterMetrics(Registry()), app.Journal()
assert type(metrics) is Uncounted and type(journal) is Unwritten
metrics.ended("demo", "served", 1.0)
metrics.refused("demo", "yield")
journal.admitted("id", None, 0)
assert metrics._requests._children == {} and journal.decided == 0
"""


def test_what_is_silenced_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
