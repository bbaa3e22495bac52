"""Check the documents: every relative link and anchor resolves, every setting in .env.example is explained.

    python docs/check.py        one line per fault, exit status 1 if there is any

Anchors follow GitHub's rule: a heading in lower case, punctuation dropped, spaces become hyphens, and a repeated
heading gets -1, -2, and so on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
SOURCE = re.compile(r"\bsrc(?:set)?=\"([^\"]+)\"")
LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
FENCE = re.compile(r"^\s*(```|~~~)")
SETTING = re.compile(r"^#?\s?([A-Z][A-Z0-9_]+)=")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines that are not inside a code fence."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text: str) -> set[str]:
    seen: Counter[str] = Counter()
    found = set(re.findall(r"<a\s+(?:id|name)=\"([^\"]+)\"", text))
    for _, line in prose(text):
        if heading := HEADING.match(line):
            slug = slugify(heading[1])
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found


def slugify(heading: str) -> str:
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def faults_of(page: Path, root: Path) -> Iterator[str]:
    for number, line in prose(page.read_text(encoding="utf-8")):
        text = re.sub(r"`[^`]*`", "", line)
        for target in (*LINK.findall(text), *SOURCE.findall(text)):
            if reason := fault_of(page, target, root):
                yield f"{page.relative_to(root)}:{number}: {target}: {reason}"


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


def pages(root: Path) -> list[Path]:
    """The Markdown files of the repository: those git tracks or would track, else all of them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    found = [root / name for name in names] or [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    return sorted(page for page in found if page.is_file())


def main() -> int:
    checked = pages(ROOT)
    faults = [fault for page in checked for fault in faults_of(page, ROOT)]
    example = ROOT / ".env.example"
    if example.exists():
        faults += unexplained(example)
    for fault in faults:
        sys.stderr.write(fault + "\n")
    sys.stdout.write(f"documents: {len(checked)} pages, {len(faults)} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
