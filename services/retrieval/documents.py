"""Parsers from files to sections of text: Markdown, reStructuredText, HTML, PDF and plain text.

A document is data: nothing in it is run, included or fetched. What cannot be read raises UnreadableDocument.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

import docutils.core
import docutils.nodes
from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pypdf import PdfReader

from services.retrieval.chunks import Section

MAX_HEADING_CHARS = 160  # a longer one counts as a paragraph
MAX_PDF_PAGES = 2000
_FRONT_MATTER = re.compile(r"\A---\n.*?\n(?:---|\.\.\.)\n", re.DOTALL)
_SPACES = re.compile(r"[ \t\r\f\v\u00a0]+")
_BLANK_LINES = re.compile(r"\n\s*\n\s*")


class UnreadableDocument(Exception):
    """The file cannot become a document; the message says why."""


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    sections: list[Section]


class _Outline:
    """Collects text under its headings."""

    def __init__(self) -> None:
        self._sections: list[Section] = []
        self._headings: list[tuple[int, str]] = []
        self._text: list[str] = []

    def heading(self, level: int, text: str) -> None:
        """End the section before, and the sections of this level or below."""
        text = " ".join(text.split())
        if not text:
            return
        if len(text) > MAX_HEADING_CHARS:
            self.block(text)
            return
        self._close()
        self._headings = [(depth, words) for depth, words in self._headings if depth < level] + [(level, text)]

    def block(self, text: str, separator: str = "\n\n") -> None:
        """Add a paragraph, item, cell or listing, after `separator` unless it is the first."""
        if text.strip():
            self._text.append((separator if self._text else separator.lstrip("\n| ")) + text.strip("\n"))

    def _close(self) -> None:
        path = tuple(words for _, words in self._headings)
        text = "".join(self._text)
        if path or text:
            self._sections.append(Section(path, text))
        self._text = []

    def sections(self) -> list[Section]:
        self._close()
        return self._sections


def parse(name: str, data: bytes) -> Document:
    """The document in a file of this name. Raises UnreadableDocument."""
    parser = PARSERS.get(PurePath(name).suffix.lower())
    if parser is None:
        raise UnreadableDocument(f"has an unsupported type; supported are {', '.join(sorted(PARSERS))}")
    try:
        sections = [Section(tuple(map(_storable, part.path)), _storable(part.text)) for part in parser(data)]
    except UnreadableDocument:
        raise
    except (Exception, RecursionError) as error:  # the parsers' errors have no common base class
        raise UnreadableDocument(
            f"cannot be parsed ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
        ) from error
    if not any(part.text.strip() or part.path for part in sections):
        raise UnreadableDocument("contains no text")
    title = next((part.path[0] for part in sections if part.path), PurePath(name).stem)
    return Document(title, sections)


def _storable(text: str) -> str:
    """Text that PostgreSQL accepts: a PDF may hold NUL and lone surrogates."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def _text(data: bytes) -> str:
    if b"\x00" in data:
        raise UnreadableDocument("contains NUL bytes: it is not text")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UnreadableDocument(f"is not UTF-8 (byte {error.start})") from None


def _plain(data: bytes) -> list[Section]:
    return [Section((), _text(data).strip("\n"))]


def _markdown(data: bytes) -> list[Section]:
    text = _FRONT_MATTER.sub("", _text(data))
    outline = _Outline()
    heading: int | None = None
    before: str | None = None  # separator of the next text, where an item or a cell sets it
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        match token.type:
            case "heading_open":
                heading = int(token.tag[1])
            case "list_item_open":
                before = f"\n{token.info}{token.markup} " if token.info else "\n- "
            case "tr_open":
                before = "\n"
            case "th_open" | "td_open":
                before = before or " | "
            case "inline" if heading is not None:
                outline.heading(heading, _inline(token))
                heading = before = None
            case "inline":
                outline.block(_inline(token), before or "\n\n")
                before = None
            case "fence" | "code_block":
                outline.block(token.content)
            case "html_block":
                outline.block(BeautifulSoup(token.content, "html.parser").get_text(" ", strip=True))
    return outline.sections()


def _inline(token: Token) -> str:
    """The text of an inline token, without markup."""
    words = {"softbreak": " ", "hardbreak": "\n"}
    parts = (words.get(part.type, "" if part.type == "html_inline" else part.content) for part in token.children or [])
    return "".join(parts)


_RST_SETTINGS = {
    "file_insertion_enabled": False,  # `.. include::` could read any file of the service
    "raw_enabled": False,
    "_disable_config": True,
    "report_level": 5,
    "halt_level": 5,
    "input_encoding": "unicode",
    "smart_quotes": False,
}


def _restructured(data: bytes) -> list[Section]:
    tree = docutils.core.publish_doctree(_text(data), settings_overrides=_RST_SETTINGS)
    outline = _Outline()
    _walk_restructured(tree, 1, outline)
    return outline.sections()


def _walk_restructured(node: docutils.nodes.Element, level: int, outline: _Outline) -> None:
    for child in node.children:
        if isinstance(child, docutils.nodes.Invisible | docutils.nodes.system_message):
            continue
        if isinstance(child, docutils.nodes.title):
            outline.heading(level, child.astext())
        elif isinstance(child, docutils.nodes.literal_block):
            outline.block(child.astext())
        elif isinstance(child, docutils.nodes.TextElement):
            outline.block(" ".join(child.astext().split()), _separator(child))
        elif isinstance(child, docutils.nodes.Element):
            deeper = isinstance(child, docutils.nodes.section)
            _walk_restructured(child, level + deeper, outline)


def _separator(node: docutils.nodes.Element) -> str:
    """Items and cells are lines of one block; paragraphs are blocks."""
    if isinstance(node.parent, docutils.nodes.list_item) and node.parent[0] is node:
        return "\n- "
    return "\n" if isinstance(node.parent, docutils.nodes.entry) else "\n\n"


_INVISIBLE = {"script", "style", "template", "noscript", "head"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = {"p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "body", "form", "figure"}
_PARAGRAPHS |= {"ul", "ol", "dl", "table", "blockquote"}
_LINES = {"li": "\n- ", "tr": "\n", "br": "\n", "dt": "\n", "dd": "\n", "option": "\n"}


def _html(data: bytes) -> list[Section]:
    soup = BeautifulSoup(_text(data), "html.parser")
    outline = _Outline()
    if soup.title is not None and soup.h1 is None:
        outline.heading(1, soup.title.get_text(" "))
    walk = _HtmlWalk(outline)
    walk.inside(soup)
    walk.flush()
    return outline.sections()


class _HtmlWalk:
    """Collects the words of a line until an element begins or ends one."""

    def __init__(self, outline: _Outline) -> None:
        self._outline = outline
        self._line: list[str] = []
        self._before: str | None = None

    def inside(self, element: Tag) -> None:
        for child in element.children:
            if isinstance(child, Tag):
                self._element(child)
            elif type(child) is NavigableString:  # its subclasses are comments and declarations
                self._line.append(child)

    def _element(self, element: Tag) -> None:
        name = element.name
        if name in _INVISIBLE:
            return
        if name in _HEADINGS:
            self.flush()
            self._outline.heading(_HEADINGS[name], element.get_text(" "))
        elif name == "pre":
            self.flush()
            self._outline.block(element.get_text())
        elif name in ("td", "th"):
            self._bounded(element, " | ")
        elif name in _PARAGRAPHS or name in _LINES:
            self._bounded(element, _LINES.get(name))
        else:
            self.inside(element)

    def _bounded(self, element: Tag, before: str | None) -> None:
        self.flush()
        self._before = self._before or before
        self.inside(element)
        self.flush()

    def flush(self) -> None:
        words = " ".join("".join(self._line).split())
        self._line.clear()
        if words:
            self._outline.block(words, self._before or "\n\n")
            self._before = None


def _pdf(data: bytes) -> list[Section]:
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocument("is encrypted")
    if len(reader.pages) > MAX_PDF_PAGES:
        raise UnreadableDocument(f"has {len(reader.pages)} pages, more than {MAX_PDF_PAGES}")
    outline = _Outline()
    for number, page in enumerate(reader.pages, start=1):
        text = _SPACES.sub(" ", page.extract_text())
        if text.strip():
            outline.heading(1, f"page {number}")
        for paragraph in _BLANK_LINES.split(text):
            outline.block(" ".join(paragraph.split()))  # lines of a PDF break at the width of the page
    return outline.sections()


PARSERS: dict[str, Callable[[bytes], list[Section]]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _plain,
    ".rst": _restructured,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
}
