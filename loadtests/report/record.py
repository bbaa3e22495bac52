"""What a long run has finished so far, in a file: a run that was interrupted goes on after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class OtherRun(ValueError):
    """The file holds another run, which cannot be added to this one."""


class Record:
    """Rows of JSON, one a line, each written when it is finished. The first line says what is run on what.

    `rows`: those that an earlier run has left.
    """

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        """Raises OtherRun where the file was begun with another head."""
        self._path = path
        found = list(_whole(path.read_text(encoding="utf-8"))) if path.exists() else []
        if found and found[0] != head:
            raise OtherRun(f"{path} was begun with {found[0]}, and this run is {dict(head)}: name another file")
        self.rows = found[1:]
        if not found:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(head) + "\n", encoding="utf-8")

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep one more, on a line of its own even after half a line."""
        begin = "" if self._path.read_bytes().endswith(b"\n") else "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{begin}{json.dumps(row)}\n")


def _whole(text: str) -> Iterator[dict[str, Any]]:
    """Lines that can be read: a run that was killed may have left half of one."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
