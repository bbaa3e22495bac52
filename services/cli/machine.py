"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def describe() -> str:
    """Cores, system, Python, commit, date."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = " with changes" if _git("status", "--porcelain", "-uno") else ""
    return (
        f"{os.cpu_count()} cores of {_processor()}, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}; commit {commit or 'none'}{changed}, {datetime.now(UTC):%Y-%m-%d}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())


def _git(*args: str) -> str:
    try:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
