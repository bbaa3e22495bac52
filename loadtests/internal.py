"""The token that internal routes of a stack require (INTERNAL_TOKEN), for tools of the same user.

Sources in order: INTERNAL_TOKEN, the file named by INTERNAL_TOKEN_FILE, and `internal-token` in DATA_DIR, which `weir
up` writes while it runs. A test stand requires no token and ignores one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NONE = "none"
DATA_DIR = ".weir"
FILE = "internal-token"
MAX_BYTES = 4096


def headers(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The authorization header; empty if no token is found."""
    token = environment.get("INTERNAL_TOKEN", "") or _read(environment)
    return {"authorization": f"Bearer {token}"} if token and token != NONE else {}


def _read(environment: Mapping[str, str]) -> str:
    named = environment.get("INTERNAL_TOKEN_FILE", "")
    file = Path(named) if named else Path(environment.get("DATA_DIR") or DATA_DIR) / FILE
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode("latin-1").strip()
    except OSError:
        return ""
