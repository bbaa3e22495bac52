"""Chunks: nothing lost, nothing too long, and cut where a reader would."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.retrieval.chunks import PIECE_CHARS, Section, chunk


def words(text: str) -> int:
    """A token per word, and one more for each four characters of a long one."""
    return sum(1 + len(word) // 8 for word in text.split())


TEXT = st.text(alphabet="ab .\n!\té", max_size=400)
HEADING = st.text(alphabet="xyz ", max_size=30).map(lambda text: " ".join(text.split())).filter(bool)


def outline(parts: list[tuple[int, str, str]]) -> list[Section]:
    """Sections as a parser makes them: whatever is above a section comes before it."""
    path: tuple[str, ...] = ()
    sections = []
    for level, heading, text in parts:
        path = (*path[:level], heading)
        sections.append(Section(path, text))
    return sections


OUTLINES = st.lists(st.tuples(st.integers(0, 3), HEADING, TEXT), max_size=6).map(outline)
PREAMBLES = TEXT.map(lambda text: [Section((), text)])


@given(st.builds(list.__add__, PREAMBLES, OUTLINES), st.integers(16, 60), st.integers(0, 8))
@example([Section(("a",), ""), Section(("a", "b"), "")], 16, 0)
@example([Section((), "x" * 500)], 16, 4)
@settings(max_examples=300)
def test_every_word_is_in_some_chunk_and_no_chunk_is_too_long(sections: list[Section], most: int, overlap: int) -> None:
    chunks = chunk(sections, words, max_tokens=most, overlap_tokens=overlap)
    assert all(words(text) <= most for text in chunks)
    joined = "".join("".join(text.split()) for text in chunks)
    found = {word for text in chunks for word in re.findall(r"[^\s>]+", text)}
    for section in sections:
        for word in f"{' '.join(section.path)} {section.text}".split():
            pieces = [word[at : at + PIECE_CHARS] for at in range(0, len(word), PIECE_CHARS)]
            assert word in found or all(piece in joined for piece in pieces)


@given(st.integers(1, 400), st.integers(16, 60), st.integers(0, 8))
def test_words_keep_their_order_and_repeat_by_at_most_the_overlap(count: int, most: int, overlap: int) -> None:
    text = " ".join(str(number) for number in range(count))
    pieces = [
        [int(word) for word in piece.split()]
        for piece in chunk([Section((), text)], lambda t: len(t.split()), max_tokens=most, overlap_tokens=overlap)
    ]
    assert pieces[0][0] == 0
    assert pieces[-1][-1] == count - 1
    for piece, following in itertools.pairwise(pieces):
        assert piece == list(range(piece[0], piece[-1] + 1))
        repeated = piece[-1] + 1 - following[0]
        assert 0 <= repeated <= overlap
        assert following[-1] > piece[-1]


def test_a_chunk_begins_with_its_headings() -> None:
    sections = [Section(("Guide",), "Welcome."), Section(("Guide", "Install"), "Run make.")]
    assert chunk(sections, words, max_tokens=60, overlap_tokens=0) == [
        "Guide\n\nWelcome.",
        "Guide > Install\n\nRun make.",
    ]


def test_a_heading_with_nothing_under_it_is_kept_by_the_next_chunk_or_by_itself() -> None:
    above = [Section(("Guide",), ""), Section(("Guide", "Install"), "Run make.")]
    assert chunk(above, words, max_tokens=60, overlap_tokens=0) == ["Guide > Install\n\nRun make."]
    last = [Section(("Guide",), "Welcome."), Section(("Guide", "To be written"), "")]
    assert chunk(last, words, max_tokens=60, overlap_tokens=0) == ["Guide\n\nWelcome.", "Guide\n\nTo be written"]


def test_headings_that_would_fill_the_chunk_lose_their_beginning() -> None:
    path = ("one two three", "four five", "six")
    (text,) = chunk([Section(path, "word")], words, max_tokens=12, overlap_tokens=0)
    assert text == "four five > six\n\nword"


def test_cuts_fall_at_the_end_of_a_paragraph_before_a_sentence_before_a_word() -> None:
    paragraph = "a b c d e f g h.\n\ni j k l. m n o p"
    assert chunk([Section((), paragraph)], words, max_tokens=14, overlap_tokens=0)[0] == "a b c d e f g h."
    sentence = "a b c d e f g h. i j k l m n o p"
    assert chunk([Section((), sentence)], words, max_tokens=12, overlap_tokens=0)[0] == "a b c d e f g h."
    plain = "a b c d e f g h i j k l m n o p"
    assert chunk([Section((), plain)], words, max_tokens=12, overlap_tokens=0)[0] == "a b c d e f g h i j k l"


def test_listings_keep_their_white_space() -> None:
    code = "def f():\n    return {\n        'a': 1,\n    }"
    assert chunk([Section((), code)], words, max_tokens=60, overlap_tokens=0) == [code]


def test_an_overlap_of_more_than_half_is_refused() -> None:
    with pytest.raises(ValueError, match="more than half"):
        chunk([], words, max_tokens=20, overlap_tokens=11)
