"""Check the documents: links, anchors, diagrams, decision records, settings, and that what they name exists.

    python docs/check.py [FOLDER]        one line per fault, exit status 1 if there is any

Every relative link and anchor resolves; every file, test, module and verb that a page names is there (`named.py`);
every diagram has the looks of one (`diagrams.py`); every decision record is in the index and says what enforces it
(`records.py`); every page of results is in its index; every setting in .env.example is explained.

Anchors follow GitHub's rule: a heading in lower case, punctuation dropped, spaces become hyphens, and a repeated
heading gets -1, -2, and so on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import diagrams
import records
from headings import anchors, lines
from named import Names

ROOT = Path(__file__).resolve().parent.parent
SOURCE = re.compile(r"\bsrc(?:set)?=\"([^\"]+)\"")
LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
SETTING = re.compile(r"^#?\s?([A-Z][A-Z0-9_]+)=")
HISTORY = ("changelog.md",)  # tells of files that are gone
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def faults_of(page: Path, root: Path, names: Names) -> Iterator[str]:
    told = page.relative_to(root)
    for number, line, fenced in lines(page.read_text(encoding="utf-8")):
        text = "" if fenced else re.sub(r"`[^`]*`", "", line)
        for target in (*LINK.findall(text), *SOURCE.findall(text)):
            if reason := fault_of(page, target, root):
                yield f"{told}:{number}: {target}: {reason}"
        if page.name not in HISTORY:
            yield from (f"{told}:{number}: {reason}" for reason in names.missing(line, fenced=fenced))
    for diagram in diagrams.diagrams(page):
        yield from (f"{told}:{number}: {reason}" for number, reason in diagrams.faults(diagram))


def fault_of(page: Path, target: str, root: Path) -> str | None:
    if ELSEWHERE.match(target):
        return None
    path, _, anchor = unquote(target).partition("#")
    file = (root / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve() if path else page
    if not file.is_relative_to(root):
        return "points outside the repository"
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
        return f"no heading #{anchor} there"
    return None


def unexplained(example: Path) -> Iterator[str]:
    """A setting needs a comment: above it, above the group it stands in, or at the end of its line."""
    explained = False
    for number, line in enumerate(example.read_text(encoding="utf-8").splitlines(), start=1):
        if setting := SETTING.match(line):
            if not explained and " #" not in line:
                yield f"{example.name}:{number}: {setting[1]}: no line says what it means"
        else:
            explained = line.startswith("#")


def unlisted(folder: Path) -> Iterator[str]:
    """Pages that their folder's README does not link to: nobody would find them."""
    index = folder / "README.md"
    if index.exists():
        listed = set(LINK.findall(index.read_text(encoding="utf-8")))
        missing = sorted(page.name for page in folder.glob("*.md") if page.name not in {index.name, *listed})
        yield from (f"{name}: is not in README.md beside it" for name in missing)


def tracked(root: Path) -> list[str]:
    """The files of the repository: those git tracks or would track, else all of them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return listed.stdout.splitlines()
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def pages(root: Path) -> list[Path]:
    return sorted(root / name for name in tracked(root) if name.endswith(".md") and (root / name).is_file())


def main() -> int:
    root = Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT
    checked, names = pages(root), Names.of(root, tracked(root))
    faults = [fault for page in checked for fault in faults_of(page, root, names)]
    decisions = root / "docs" / "decisions"
    faults += [f"{decisions.relative_to(root)}/{fault}" for fault in records.faults(decisions)]
    results = root / "docs" / "results"
    faults += [f"{results.relative_to(root)}/{fault}" for fault in unlisted(results)]
    example = root / ".env.example"
    if example.exists():
        faults += unexplained(example)
    for fault in faults:
        sys.stderr.write(fault + "\n")
    sys.stdout.write(f"documents: {len(checked)} pages, {len(faults)} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
