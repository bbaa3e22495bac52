"""The machine and the commit that a figure was measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from loadtests.paths import ROOT

WRITTEN = (":!docs/results", ":!README.md")
"""Files that the commands write. Changes in them do not mark a commit as changed: they are not measured."""
DESCRIBED = re.compile(r"(?P<hardware>.+); commit (?P<commit>\w+(?: with changes)?), (?P<day>\d{4}-\d\d-\d\d)")


def describe() -> str:
    """Cores, system, Python, commit and date, in one line."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = " with changes" if _git("status", "--porcelain", "-uno", "--", ".", *WRITTEN) else ""
    return (
        f"{os.cpu_count()} cores of {_processor()}, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}; commit {commit or 'none'}{changed}, {datetime.now(UTC):%Y-%m-%d}"
    )


def together(described: Iterable[str]) -> str:
    """Merges several results of `describe`: each machine once, with its commits and the first and last day."""
    machines: dict[str, list[re.Match[str]]] = {}
    for each in dict.fromkeys(described):
        found = DESCRIBED.fullmatch(each)
        machines.setdefault(found["hardware"] if found else each, []).extend([found] if found else [])
    return "; ".join(f"{hardware}{_commits(times)}" for hardware, times in machines.items())


def _commits(times: Sequence[re.Match[str]]) -> str:
    """The commits and days of one machine; empty for a text that `describe` did not write."""
    if not times:
        return ""
    *others, last = dict.fromkeys(found["commit"] for found in times)
    commits = f"commits {', '.join(others)} and {last}" if others else f"commit {last}"
    first_day, last_day = min(found["day"] for found in times), max(found["day"] for found in times)
    return f"; {commits}, {first_day}{f' to {last_day}' if last_day != first_day else ''}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())


def _git(*args: str) -> str:
    try:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
