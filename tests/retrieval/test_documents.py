"""Each kind of file, and each way in which a file can be bad."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from services.retrieval.chunks import Section
from services.retrieval.documents import PARSERS, UnreadableDocument, parse


def sections(name: str, text: str | bytes) -> list[Section]:
    return parse(name, text.encode() if isinstance(text, str) else text).sections


def pdf(*pages: str, password: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    writer = PdfWriter()
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    for text in pages:
        page = writer.add_blank_page(300, 300)
        fonts = DictionaryObject({NameObject("/F1"): DictionaryObject(_names(font))})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = content
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def _names(values: dict[str, str]) -> dict[NameObject, NameObject]:
    return {NameObject(key): NameObject(value) for key, value in values.items()}


def test_markdown_gives_its_words_under_their_headings() -> None:
    text = (
        "---\ntitle: front matter\n---\nBefore.\n\n# Guide *to* `weir`\n\nSome [link](http://x) text\nwrapped.\n\n"
        "1. one\n2. two\n   - nested\n\n## Tables\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```py\nif x:\n    y\n```\n\n# End\n"
    )
    assert sections("a.md", text) == [
        Section((), "Before."),
        Section(("Guide to weir",), "Some link text wrapped.\n1. one\n2. two\n- nested"),
        Section(("Guide to weir", "Tables"), "a | b\n1 | 2\n\nif x:\n    y"),
        Section(("End",), ""),
    ]


def test_restructured_text_gives_sections_lists_and_listings() -> None:
    text = "Guide\n=====\n\nSome *text*\nwrapped.\n\nSub\n---\n\n- one\n- two\n\n::\n\n  code\n    more\n\n.. comment\n"
    assert sections("a.rst", text) == [
        Section(("Guide",), "Some text wrapped."),
        Section(("Guide", "Sub"), "- one\n- two\n\ncode\n  more"),
    ]


def test_restructured_text_includes_no_other_file() -> None:
    for directive in (
        "include:: /etc/hostname",
        "raw:: html\n   :file: /etc/hostname",
        "csv-table::\n   :file: /etc/hosts",
    ):
        (section,) = sections("a.rst", f"Text.\n\n.. {directive}\n")
        assert section.text == "Text."


def test_html_gives_what_a_reader_sees() -> None:
    text = (
        "<html><head><title>Page</title><style>p{}</style></head><body><p>Hello <b>big</b>\nworld<br>next</p>"
        "<h2>Two <i>words</i></h2><ul><li>one<ul><li>deep</ul><li>two</ul><table><tr><td>1</td><td>2</td></tr></table>"
        "<pre>a\n  b</pre><script>evil()</script><!-- hidden -->tail</body></html>"
    )
    assert sections("a.html", text) == [
        Section(("Page",), "Hello big world\nnext"),
        Section(("Page", "Two words"), "- one\n- deep\n- two\n1 | 2\n\na\n  b\n\ntail"),
    ]


def test_a_pdf_gives_its_pages() -> None:
    assert sections("a.pdf", pdf("Weir holds a river", "at its level")) == [
        Section(("page 1",), "Weir holds a river"),
        Section(("page 2",), "at its level"),
    ]


def test_a_title_is_the_first_heading_or_else_the_name_of_the_file() -> None:
    assert parse("notes/a.md", b"# Guide\n\nText").title == "Guide"
    assert parse("notes/plain.txt", b"Text").title == "plain"


def test_line_ends_and_byte_order_marks_of_other_systems_are_read() -> None:
    assert sections("a.txt", b"\xef\xbb\xbfone\r\ntwo\rthree") == [Section((), "one\ntwo\nthree")]


def test_a_heading_of_the_length_of_a_paragraph_is_one() -> None:
    long = "word " * 60
    assert sections("a.md", f"# {long}") == [Section((), long.strip())]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.md", b"text \x00 more", "contains NUL bytes"),
        ("a.txt", b"caf\xe9", r"is not UTF-8 \(byte 3\)"),
        ("a.html", b"\xff\xfe<\x00p\x00", "contains NUL bytes"),
        ("a.md", b"", "contains no text"),
        ("a.rst", b" \n\t\n", "contains no text"),
        ("a.html", b"<script>only()</script>", "contains no text"),
        ("a.pdf", b"%PDF-1.7 and then nothing", "cannot be parsed"),
        ("a.pdf", b"not a pdf at all", "cannot be parsed"),
        ("a.pdf", pdf("secret", password="x"), "is encrypted"),
        ("a.pdf", pdf(""), "contains no text"),
        ("a.docx", b"PK", "has an unsupported type; supported are .htm, .html"),
        ("README", b"text", "has an unsupported type"),
    ],
)
def test_a_bad_file_is_refused_with_its_reason(name: str, data: bytes, why: str) -> None:
    with pytest.raises(UnreadableDocument, match=why):
        parse(name, data)


def test_a_page_nested_beyond_all_measure_is_refused_and_nothing_worse() -> None:
    with pytest.raises(UnreadableDocument, match="cannot be parsed"):
        parse("a.html", b"<b>" * 50_000 + b"x")


@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=300) | st.text(max_size=300).map(lambda t: t.encode()))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_document_or_unreadable_and_storable_either_way(kind: str, data: bytes) -> None:
    try:
        document = parse(f"file{kind}", data)
    except UnreadableDocument:
        return
    for section in document.sections:
        for text in (*section.path, section.text):
            assert "\x00" not in text
            text.encode("utf-8")
