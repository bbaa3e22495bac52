"""The API is what its description says: schemathesis sends what the description allows, and what it does not.

Skipped where schemathesis is not installed: `python -m tests.real.clients schemathesis`.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.real.clients.table import SCHEMATHESIS
from tests.real.stack.stand import Stand

EXAMPLES = "40"
"""Of each operation and phase."""


def test_what_the_description_allows_is_answered_and_what_it_does_not_is_refused(stand: Stand) -> None:
    program = SCHEMATHESIS.program("schemathesis")
    if program is None:
        pytest.skip(SCHEMATHESIS.missing())
    words = [
        str(program), "run", f"{stand.router.url}/openapi.json", "--checks", "all", "--phases", "examples,coverage,fuzzing",
        "--max-examples", EXAMPLES, "--seed", "20261126", "--no-shrink", "--continue-on-failure", "--workers", "1",
        "--request-timeout", "60", "--generation-database", "none",
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(stand.folder), "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=stand.folder, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
