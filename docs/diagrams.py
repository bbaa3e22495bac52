"""Check the mermaid diagrams of the documents, and draw them.

    python docs/diagrams.py        what can be seen without mermaid
    make diagrams                  drawn by mermaid itself, in chromium: out/diagrams

A page with a diagram that does not parse shows a red box in its place, and nobody who writes it sees that. The first
form knows the mistakes that are made most often, needs nothing, and is part of `make check`. The second one is the
truth: it fetches mermaid from npm, and writes each diagram as a picture, in light and dark.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FLOWCHARTS = ("flowchart", "graph")
KINDS = (*FLOWCHARTS, "sequenceDiagram", "stateDiagram-v2", "erDiagram")
OPEN = re.compile(r"^\s*```mermaid\s*$")
CLOSE = re.compile(r"^\s*```\s*$")
QUOTED = re.compile(r'"[^"]*"')
BARE_LABEL = re.compile(r"\[(?![(\[/\\])([^\[\]]*)\]|\|([^|]*)\|")
NAMED_END = re.compile(r"(?:^end\b.+|-[->]\s*(?:\|[^|]*\|\s*)?end\b)")
PAIRS = {")": "(", "]": "[", "}": "{"}
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-proxy-server"]
DRAW = """async ([text, theme]) => {
  mermaid.initialize({startOnLoad: false, theme: theme, securityLevel: "strict"});
  try { document.body.innerHTML = (await mermaid.render("drawn", text)).svg; return null; }
  catch (fault) { return String(fault.message || fault); }
}"""


@dataclass(frozen=True, slots=True)
class Diagram:
    """The text between the fences, and where its first line stands."""

    page: Path
    line: int
    lines: tuple[str, ...]
    closed: bool = True

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def diagrams(page: Path) -> Iterator[Diagram]:
    begun: int | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if begun is None:
            if OPEN.match(line):
                begun, lines = number + 1, []
        elif CLOSE.match(line):
            yield Diagram(page, begun, tuple(lines))
            begun = None
        else:
            lines.append(line)
    if begun is not None:
        yield Diagram(page, begun, tuple(lines), closed=False)


def faults(diagram: Diagram) -> Iterator[tuple[int, str]]:
    """What can be seen without mermaid: the line, and what is wrong with it."""
    if not diagram.closed:
        yield diagram.line, "the fence of this diagram is never closed"
        return
    words = diagram.text.split()
    if not words or words[0] not in KINDS:
        yield diagram.line, f"a diagram begins with one of {', '.join(KINDS)}"
        return
    open_blocks = 0
    for number, line in enumerate(diagram.lines, start=diagram.line):
        text = line.strip()
        if text.startswith("%%"):
            continue
        open_blocks += re.match(r"(subgraph|alt|opt|loop|par|critical|break|rect)\b", text) is not None
        open_blocks -= text == "end"
        if words[0] == "erDiagram":  # its lines have crow's feet, which are brackets that nothing closes
            continue
        yield from ((number, fault) for fault in _of_a_line(text, words[0]))
    if open_blocks:
        yield diagram.line, "a block (subgraph, alt, loop) without its `end`, or an `end` without its block"


def _of_a_line(text: str, kind: str) -> Iterator[str]:
    if text.count('"') % 2:
        yield "a quotation mark without its pair"
    elif kind == "sequenceDiagram" and ";" in text:
        yield "a semicolon ends a statement of a sequence diagram, in the middle of its words"
    elif kind in FLOWCHARTS:
        yield from _of_a_flowchart(QUOTED.sub('""', text))


def _of_a_flowchart(text: str) -> Iterator[str]:
    """One line of it, its quoted words left out."""
    for label in BARE_LABEL.finditer(text):
        if re.search(r"[(){}]", label[1] or label[2] or ""):
            yield f"a label with brackets needs quotation marks: {label[0]}"
            return
    if NAMED_END.search(text):
        yield "`end` is a word of mermaid and no name of a node"
    if not _balanced(text):
        yield "a bracket without its pair"


def _balanced(text: str) -> bool:
    waiting: list[str] = []
    for sign in text:
        if sign in PAIRS.values():
            waiting.append(sign)
        elif sign in PAIRS and (not waiting or waiting.pop() != PAIRS[sign]):
            return False
    return not waiting


def rendered(found: list[Diagram], mermaid: Path, out: Path | None) -> Iterator[str]:
    """Mermaid's own word on each diagram, in light and dark; the pictures go to `out`."""
    from playwright.sync_api import sync_playwright

    if out:
        out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1012, "height": 800})  # as wide as a page of GitHub
        page.set_content("<body></body>")
        page.add_script_tag(path=str(mermaid))
        for diagram in found:
            for theme in ("default", "dark"):
                if fault := page.evaluate(DRAW, [diagram.text, theme]):
                    yield f"{diagram.page}:{diagram.line}: {fault.splitlines()[0]}"
                    break
                page.evaluate("c => document.body.style.background = c", "#fff" if theme == "default" else "#0d1117")
                if out:
                    name = f"{diagram.page.parent.name}-{diagram.page.stem}-{diagram.line}-{theme}.png"
                    page.locator("svg").first.screenshot(path=out / name)
        browser.close()


def main() -> int:
    from check import ROOT, pages

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mermaid", type=Path, help="mermaid.min.js, to draw them with")
    options.add_argument("--out", type=Path, help="a folder for the pictures")
    chosen = options.parse_args()
    found = [diagram for page in pages(ROOT) for diagram in diagrams(page)]
    told = [f"{diagram.page.relative_to(ROOT)}:{line}: {fault}" for diagram in found for line, fault in faults(diagram)]
    if chosen.mermaid:
        told += rendered(found, chosen.mermaid, chosen.out)
    for fault in told:
        sys.stderr.write(fault + "\n")
    done = "drawn" if chosen.mermaid else "looked at"
    sys.stdout.write(f"diagrams: {len(found)} {done}, {len(told)} faults\n")
    return 1 if told else 0


if __name__ == "__main__":
    raise SystemExit(main())
