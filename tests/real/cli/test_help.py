"""`weir --help` in a fresh interpreter imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys


def test_help_does_not_import_what_it_does_not_need() -> None:
    heavy = ("asyncpg", "httpx2", "psutil", "pydantic")
    script = f"import sys, services.cli.__main__; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
