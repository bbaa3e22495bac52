"""What may not change by accident: a text that the code makes, pinned as a file, and the difference between the two.

An oracle is a function that makes texts, each with the name of its file. The files lie in `pinned/`. The same code
makes the same text on every machine: nothing in it depends on the order of a hash table, the clock, or a free port.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PINNED = Path(__file__).parent / "pinned"
MOST_LINES = 40
"""Of one file's difference: to read more, `make oracles WRITE=1` and `git diff`."""
MOST_FILES = 6

Texts = Mapping[str, str]
Explain = Callable[[str, str, str], str]


def _nothing_more(file: str, before: str, after: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Oracle:
    """A group of pinned files, and what makes their texts."""

    name: str
    folder: Path
    make: Callable[[], Texts]
    """The file's name -> its text. Only files with these names lie in `folder`."""
    explain: Explain = _nothing_more
    """What to say of a file that differs, beside the difference: given its name, the pinned text, the new one."""

    @property
    def rewrite(self) -> str:
        """The command that accepts its differences."""
        return f"make oracles WRITE=1 ARGS='--only {self.name}', and say in the commit why"

    def differences(self) -> list[str]:
        """One readable difference for each file that is not as it is pinned. Empty: nothing has changed."""
        made = self.make()
        return [self._difference(name, made) for name in self._changed(made)]

    def write(self) -> list[str]:
        """Pin what the code makes now. Returns the names of the files that have changed."""
        made = self.make()
        changed = self._changed(made)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in changed:
            if name in made:
                (self.folder / name).write_text(made[name], encoding="utf-8")
            else:
                (self.folder / name).unlink()
        return changed

    def _changed(self, made: Texts) -> list[str]:
        """Files that differ, that are missing, and that nothing makes any more."""
        lying = {path.name for path in self.folder.glob("*")}
        return [
            name
            for name in sorted({*made, *lying})
            if name not in made or name not in lying or made[name] != self.pinned(name)
        ]

    def _difference(self, name: str, made: Texts) -> str:
        before, after = self.pinned(name), made.get(name, "")
        told = [difference(before, after, f"{self.folder.name}/{name}")]
        if before and after:
            told.append(self.explain(name, before, after))
        return "\n".join(filter(None, told))

    def pinned(self, name: str) -> str:
        """The text of a file; empty where there is none."""
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def difference(before: str, after: str, name: str) -> str:
    """Both texts as a unified difference, cut after `MOST_LINES` lines."""
    old, new = before.splitlines(), after.splitlines()
    lines = list(difflib.unified_diff(old, new, f"pinned: {name}", f"made now: {name}", lineterm="", n=2))
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} lines more"]
    return "\n".join(lines)


def told(name: str, found: list[str], rewrite: str) -> str:
    """Differences for a reader, and how they are accepted: the first few, and how many more there are."""
    if not found:
        return ""
    more = [f"... and {len(found) - MOST_FILES} more"] if len(found) > MOST_FILES else []
    count = "1 difference" if len(found) == 1 else f"{len(found)} differences"
    told = f"{name}: {count} from what is pinned. If this is meant: {rewrite}"
    return "\n\n".join([*found[:MOST_FILES], *more, told])
