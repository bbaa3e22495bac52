"""Which files an ingest reads, and their bytes, all of it bounded.

A document's id is its path below the named folder, with `/` as the separator on every system. Hidden files and folders,
files of unknown kinds, and links to outside of the folder are left out. An id may have MAX_ID_BYTES; an index entry of
PostgreSQL holds about 2,700.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.contracts.documents import MAX_ID_BYTES
from services.retrieval.documents import PARSERS, UnreadableDocument


@dataclass(frozen=True, slots=True)
class Fault:
    """A file or folder that cannot be ingested, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Source:
    path: Path
    root: str
    doc_id: str


@dataclass(slots=True)
class FoundFiles:
    """The files below the named paths; `whole_roots` are the folders that could be listed entirely."""

    sources: list[Source] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    whole_roots: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)


def find(paths: Sequence[Path]) -> FoundFiles:
    found = FoundFiles()
    for path in paths:
        if path.is_dir():
            _find_below(path.resolve(), found)
        elif path.is_file():
            _add(path.resolve(), path.resolve().parent, found)
        else:
            found.faults.append(Fault(_shown(path), "does not exist" if not path.exists() else "is not a file"))
    return found


def _find_below(root: Path, found: FoundFiles) -> None:
    unlisted: list[OSError] = []
    for path in _walk(root, unlisted):
        if path.suffix.lower() in PARSERS:
            _add(path, root, found)
    for error in unlisted:
        found.faults.append(Fault(_shown(Path(error.filename or root)), error.strerror or "cannot be listed"))
    if not unlisted:
        found.whole_roots.add(str(root))


def _walk(root: Path, unlisted: list[OSError]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, onerror=unlisted.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(folder, name)


def _add(path: Path, root: Path, found: FoundFiles) -> None:
    doc_id = path.relative_to(root).as_posix()
    fault = _fault(path, root, doc_id, found.present)
    found.present.add(doc_id)
    if fault is not None:
        found.faults.append(Fault(_shown(path), fault))
    else:
        found.sources.append(Source(path, str(root), doc_id))


def _fault(path: Path, root: Path, doc_id: str, taken: set[str]) -> str | None:
    try:
        too_long = len(doc_id.encode("utf-8")) > MAX_ID_BYTES
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if too_long:
        return f"its path is longer than {MAX_ID_BYTES} bytes"
    if doc_id in taken:
        return f"another file of this ingest has the id {doc_id} already"
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        return "is a link that leads out of the folder"
    return None


def read(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file. Raises UnreadableDocument, also for more than `max_bytes`."""
    try:
        if not path.is_file():  # opening a pipe would block until it has a writer
            raise UnreadableDocument("is not a regular file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableDocument(error.strerror or "cannot be read") from None
    if len(data) > max_bytes:
        raise UnreadableDocument(f"is larger than {max_bytes:,} bytes (INGEST_MAX_FILE_BYTES)")
    return data


def _shown(path: Path) -> str:
    """The path as text that any stream accepts."""
    return str(path).encode("utf-8", "replace").decode("utf-8")
