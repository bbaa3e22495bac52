"""Chunks: pieces of a document that are small enough to embed and whole enough to read.

A chunk never crosses a heading. It begins with its path of headings, since a paragraph alone rarely says what it is
about, and is otherwise a slice of the section's own text: white space, code and tables stay as they are. Cuts fall, in
this order of preference, at the end of a paragraph, a line, a sentence, a word. The next chunk begins a little before
the cut, so that text across it is found from both sides.

Sizes are in the embedder's tokens. Tested bounds: every word is in some chunk; no chunk has more than `max_tokens`,
unless 16 characters alone do; each cut moves forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

CountTokens = Callable[[str], int]

CONTEXT_SHARE = 3  # headings may take a third of a chunk
PIECE_CHARS = 16  # size of the pieces of a word that exceeds half a chunk
_WORD = re.compile(r"\S+")
_SENTENCE_END = re.compile(r"[.!?:;。！？][\"')\]*_`]*$")


@dataclass(frozen=True, slots=True)
class Section:
    """Text under one heading, without its subsections. `path`: the headings from the top down to its own.

    Each heading of the path is an earlier section of the document, perhaps without text.
    """

    path: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class _Unit:
    """A word, or a piece of a very long one: its place in the section's text, and how good a cut after it is.

    It counts as at least one token: a tokenizer may make none of a word of invisible characters, and chunks of such
    words would have no bound.
    """

    start: int
    end: int
    tokens: int
    rank: int


PARAGRAPH, LINE, SENTENCE, WORD, NOWHERE = 4, 3, 2, 1, 0


def chunk(sections: Sequence[Section], count_tokens: CountTokens, *, max_tokens: int, overlap_tokens: int) -> list[str]:
    """The chunks of a document, in order. Raises ValueError if the overlap is negative or over half of `max_tokens`."""
    if not 0 <= overlap_tokens * 2 <= max_tokens:
        raise ValueError(f"an overlap of {overlap_tokens} is more than half of {max_tokens} tokens")
    sizes: dict[str, int] = {}

    def size(text: str) -> int:
        if text not in sizes:
            sizes[text] = count_tokens(text)
        return sizes[text]

    chunks: list[str] = []
    for position, section in enumerate(sections):
        following = sections[position + 1] if position + 1 < len(sections) else None
        context, body = _context_and_body(section, following, size, max_tokens // CONTEXT_SHARE)
        head = f"{context}\n\n" if context else ""
        room = max_tokens - count_tokens(head)
        chunks += [head + piece for piece in _slices(body, size, count_tokens, room, overlap_tokens)]
    return chunks


def _context_and_body(section: Section, following: Section | None, size: CountTokens, limit: int) -> tuple[str, str]:
    """The headings, as far as they fit, and the text. A heading that no chunk would hold becomes text."""
    context = _context(section.path, size, limit)
    if section.path and not context:
        return "", f"{section.path[-1]}\n\n{section.text}"
    if section.text.strip() or not section.path:
        return context, section.text
    covered = (
        following is not None
        and following.path[: len(section.path)] == section.path
        and _context(following.path, size, limit) == " > ".join(following.path)
    )
    return ("", "") if covered else (_context(section.path[:-1], size, limit), section.path[-1])


def _context(path: tuple[str, ...], size: CountTokens, limit: int) -> str:
    """`Guide > Install > Linux`, shortened from the left until it fits; empty if the last heading alone does not."""
    for first in range(len(path)):
        joined = " > ".join(path[first:])
        if size(joined) <= limit:
            return joined
    return ""


def _slices(text: str, size: CountTokens, count_tokens: CountTokens, room: int, overlap_tokens: int) -> Iterator[str]:
    units = _units(text, size, room)
    first = 0
    while first < len(units):
        last = _fill(units, first, room)
        if last < len(units):
            last = _best_cut(units, first, last)
        while last > first + 1 and count_tokens(text[units[first].start : units[last - 1].end]) > room:
            last -= 1  # a text may have more tokens than its words together
        yield text[units[first].start : units[last - 1].end]
        if last == len(units):
            return
        first = _overlap_start(units, first, last, overlap_tokens)


def _units(text: str, size: CountTokens, room: int) -> list[_Unit]:
    units: list[_Unit] = []
    for word in _WORD.finditer(text):
        tokens = size(word.group())
        step = PIECE_CHARS if tokens * 2 > room else len(word.group())
        for start in range(word.start(), word.end(), step):
            end = min(start + step, word.end())
            whole = step == len(word.group())
            rank = NOWHERE if end < word.end() else _rank(text, word)
            units.append(_Unit(start, end, max(1, tokens if whole else size(text[start:end])), rank))
    return units


def _rank(text: str, word: re.Match[str]) -> int:
    """How good a cut after this word is."""
    following = _WORD.search(text, word.end())
    breaks = text.count("\n", word.end(), following.start() if following else len(text))
    if breaks:
        return PARAGRAPH if breaks > 1 else LINE
    return SENTENCE if _SENTENCE_END.search(word.group()) else WORD


def _fill(units: Sequence[_Unit], first: int, room: int) -> int:
    """The end of as many units from `first` on as fit; at least one."""
    total = units[first].tokens
    last = first + 1
    while last < len(units) and total + units[last].tokens <= room:
        total += units[last].tokens
        last += 1
    return last


def _best_cut(units: Sequence[_Unit], first: int, last: int) -> int:
    """The best cut in the second half of what fits; of equals the last one."""
    earliest = first + max(1, (last - first) // 2)
    return max(range(earliest, last + 1), key=lambda cut: (units[cut - 1].rank, cut))


def _overlap_start(units: Sequence[_Unit], first: int, last: int, overlap_tokens: int) -> int:
    """Where the next chunk begins: at most `overlap_tokens` before the cut, at a good place if there is one."""
    earliest, total = last, 0
    while earliest - 1 > first and total + units[earliest - 1].tokens <= overlap_tokens:
        earliest -= 1
        total += units[earliest].tokens
    return max(range(earliest, last), key=lambda start: (units[start - 1].rank, -start), default=last)
