"""A fresh interpreter shows what is imported: of OpenTelemetry nothing but its API, which FastAPI imports by itself."""

from __future__ import annotations

import subprocess
import sys

OFF = """
import sys
from services.router import app
from services.router.config import RouterSettings
built = app.build(RouterSettings(_env_file=None, router_port=0, metrics_port=0))
assert built.tracer is None and built.listener.app.tracer is None
kept_out = ("opentelemetry.sdk", "opentelemetry.exporter", "google", "requests")
print(sorted(name for name in sys.modules if name.startswith(kept_out)))
"""


def test_no_sdk_and_no_exporter_is_imported_while_tracing_is_off() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
