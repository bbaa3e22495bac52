"""The token that a stack's own services ask for (INTERNAL_TOKEN), as a tool of the same user finds it.

In order: INTERNAL_TOKEN, the file that INTERNAL_TOKEN_FILE names, and `internal-token` in DATA_DIR, which `weir up`
writes while it runs. A stand of its own asks for none, and does not mind one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NONE = "none"
DATA_DIR = ".weir"
FILE = "internal-token"
MOST_BYTES = 4096


def headers(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The header that shows the token; none where no token is known."""
    token = environment.get("INTERNAL_TOKEN", "") or _read(environment)
    return {"authorization": f"Bearer {token}"} if token and token != NONE else {}


def _read(environment: Mapping[str, str]) -> str:
    named = environment.get("INTERNAL_TOKEN_FILE", "")
    file = Path(named) if named else Path(environment.get("DATA_DIR") or DATA_DIR) / FILE
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES).decode("latin-1").strip()
    except OSError:
        return ""
