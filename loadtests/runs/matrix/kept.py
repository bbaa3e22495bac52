"""The results so far, in a file, so that an interrupted run resumes.

Results of other code or at another pace are dropped, with a message: they must not be mixed on one page.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadtests.paths import ROOT
from loadtests.report.progress import Say
from loadtests.runs.matrix.cell import Cell, Series
from loadtests.runs.matrix.simulated import Simulated
from loadtests.simulator.promises import Values

WHAT_COUNTS = ("services", "loadtests")
PARTS = ("cells", "simulated", "promised")
"""The fields of the series with an entry for each play."""


def code(root: Path = ROOT) -> str:
    """A digest of the files in services and loadtests as they are on disk, without documents (`.md`)."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in WHAT_COUNTS for path in (root / folder).rglob("*") if _counts(path)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:20]


def _counts(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".md", ".pyc")


def read(path: Path) -> Series | None:
    """The series in the file; None if it is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Series)
    except (OSError, msgspec.MsgspecError):
        return None


class Kept:
    """The series and its file, which is replaced after every cell, so that a crash loses at most one."""

    def __init__(self, path: Path, fresh: Series, say: Say, *, forget: bool = False) -> None:
        self._path = path
        self.series = fresh
        if forget or not path.exists():
            return
        before = read(path)
        if before is None:
            say(f"{path} cannot be read: everything is played again.")
            return
        if (before.code, before.quick) != (fresh.code, fresh.quick):
            say(f"{path} holds {len(before.cells)} results of other code or of another length: they are not used.")
            return
        for part in PARTS:
            setattr(self.series, part, getattr(before, part))

    def has(self, key: str) -> bool:
        """Whether it was played without a fault."""
        cell = self.series.cells.get(key)
        return cell is not None and not cell.fault

    def keep(self, cell: Cell) -> None:
        self.series.cells[cell.key] = cell
        write(self._path, self.series)

    def keep_simulated(self, scenario: str, found: Simulated) -> None:
        self.series.simulated[scenario] = found
        write(self._path, self.series)

    def keep_promised(self, case: str, found: dict[str, Values]) -> None:
        self.series.promised[case] = found
        write(self._path, self.series)


def encoded(series: Series) -> bytes:
    """The series as JSON, one line for each play, so that two runs can be compared by line."""
    bare = msgspec.json.encode(msgspec.structs.replace(series, **{part: {} for part in PARTS}))
    head = bare.removesuffix(b",".join(b'"%b":{}' % part.encode() for part in PARTS) + b"}")
    return head + b",".join(b'"%b":%b' % (part.encode(), _lines(getattr(series, part))) for part in PARTS) + b"}\n"


def _lines(entries: Mapping[str, object]) -> bytes:
    lines = (b"%b:%b" % (msgspec.json.encode(key), msgspec.json.encode(each)) for key, each in entries.items())
    return b"{\n" + b",\n".join(lines) + b"\n}"


def write(path: Path, series: Series) -> None:
    """Replaces the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(encoded(series))
    os.replace(partial, path)
