"""Schemathesis against a running router: a bounded number of requests from a fixed seed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.real.clients.table import SCHEMATHESIS

EXAMPLES = 40
"""Of each operation and phase."""
SEED = 20_261_126
WITHIN_S = 540


CONFIG = """\
generation.codec = "utf-8"
generation.allow-x00 = false             # refused in every text, and no schema can say so at any depth
generation.allow-extra-parameters = false  # a header that the description does not name is ignored
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]  # 504: a deadline of a millisecond
# 5.0 is an integer to JSON Schema, and a fault to Weir: random values are asked for everything else.
phases.fuzzing.checks.positive_data_acceptance.enabled = false

"""


def run(url: str, folder: Path, *, may_refuse: Sequence[str] = (), only: Sequence[str] = (), key: str = "") -> None:
    """Fails with schemathesis' own report. `may_refuse`: paths that may refuse what the description allows."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG + "".join(_refusable(path) for path in may_refuse), encoding="utf-8")
    words = [
        str(SCHEMATHESIS.program("schemathesis")), "--config-file", str(config), "run", f"{url}/openapi.json",
        "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", str(SEED),
        "--no-shrink", "--continue-on-failure", "--workers", "1", "--request-timeout", "60",
        "--generation-database", "none",
        *(word for path in only for word in ("--include-path", path)),
        *(("--header", f"Authorization: Bearer {key}") if key else ()),
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_COLOR": "1"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _refusable(path: str) -> str:
    return f'[[operations]]\ninclude-path = "{path}"\nchecks.positive_data_acceptance.enabled = false\n\n'
