"""A file with the finished parts of a long run, so that an interrupted run resumes after them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class OtherRun(ValueError):
    """The file belongs to another run and cannot be continued."""


class Record:
    """JSON lines, each written when its part is finished. The first line describes the run.

    `rows` are the lines of an earlier run.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        """Raises OtherRun if the file begins with another head."""
        self._path = path
        found = list(_whole(path.read_text(encoding="utf-8"))) if path.exists() else []
        if found and found[0] != head:
            raise OtherRun(f"{path} belongs to the run {found[0]}, and this run is {dict(head)}: name another file")
        self.rows = found[1:]
        if not found:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(head) + "\n", encoding="utf-8")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row. It starts on a new line even after a truncated one."""
        begin = "" if self._path.read_bytes().endswith(b"\n") else "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{begin}{json.dumps(row)}\n")


def _whole(text: str) -> Iterator[dict[str, Any]]:
    """The lines that parse: a killed run may leave a truncated one."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
