"""The fault `death` of the simulated engine ends a real process."""

from __future__ import annotations

import subprocess
import sys

from services.worker.engines.faults import DEATH_STATUS


def test_death_is_the_end_of_the_process_without_a_word():
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import atexit, services.worker.engines.faults as f; atexit.register(print, 'bye'); f.hard_exit()",
        ],
        capture_output=True,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (DEATH_STATUS, b"", b"")
