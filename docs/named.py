"""What the documents name has to exist: files, folders, tests, modules and verbs, in backticks or in a command.

A path that moved, or a test that was renamed, leaves a page that sends its reader to nothing; a decision record whose
test is gone enforces nothing. A name counts as a path when it looks like one: `services/core/ring.py`, `router/app.py`
(a folder of `services`), or a file's name alone, which has to be that of some file here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TICKED = re.compile(r"`([^`]+)`")
FOLDERS = ("services", "tests", "loadtests", "docs", "grafana")
SERVICES = ("core", "contracts", "runtime", "router", "retrieval", "worker", "governor", "console", "cli")
PATH = re.compile(r"^[\w.-]+(?:/[\w.-]+)+/?$")
FILE = re.compile(r"^[a-z_0-9]+\.(?:py|toml|sql|cfg)$")
TEST = re.compile(r"^test_\w+$")
MODULE = re.compile(r"python3? -m ((?:services|loadtests)[\w.]*)")
VERB = re.compile(r"`make ([a-z][a-z-]*)")
FENCED_VERB = re.compile(r"^\s*(?:\$ )?make ([a-z][a-z-]*)")
TEST_FUNCTION = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.MULTILINE)
MAKE_VERB = re.compile(r"^([a-z-]+):(?!=)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Names:
    """What there is to be named."""

    root: Path
    files: frozenset[str]
    tests: frozenset[str]
    verbs: frozenset[str]

    @classmethod
    def of(cls, root: Path, tracked: Iterable[str]) -> Names:
        files = [name for name in tracked if (root / name).is_file()]
        code = (root / name for name in files if name.startswith("tests/") and name.endswith(".py"))
        tests = {test for file in code for test in TEST_FUNCTION.findall(file.read_text(encoding="utf-8"))}
        makefile = root / "Makefile"
        verbs = MAKE_VERB.findall(makefile.read_text(encoding="utf-8")) if makefile.exists() else []
        return cls(root, frozenset(name.rsplit("/", 1)[-1] for name in files), frozenset(tests), frozenset(verbs))

    def missing(self, line: str, *, fenced: bool) -> Iterator[str]:
        """What this line names and nobody finds. Inside a fence only commands count."""
        for module in MODULE.findall(line):
            if not self._is_module(module):
                yield f"no module {module}"
        for verb in (FENCED_VERB if fenced else VERB).findall(line):
            if verb not in self.verbs:
                yield f"no verb `make {verb}`"
        for word in () if fenced else TICKED.findall(line):
            if not self._is_there(word):
                yield f"nothing here is called `{word}`"

    def _is_module(self, module: str) -> bool:
        path = self.root / module.replace(".", "/")
        return path.with_suffix(".py").exists() or (path / "__main__.py").exists() or (path / "__init__.py").exists()

    def _is_there(self, word: str) -> bool:
        if TEST.match(word):
            return word in self.tests or f"{word}.py" in self.files
        if FILE.match(word):
            return word in self.files
        if not PATH.match(word):
            return True
        first = word.split("/", 1)[0]
        if first in FOLDERS:
            return (self.root / word).exists() or (self.root / f"{word}.py").exists()
        of_a_service = first in SERVICES and word.endswith((".py", "/"))
        return not of_a_service or (self.root / "services" / word).exists()
