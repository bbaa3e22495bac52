"""The connection ends, by reset or close, at every place of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadtests.faults.evil.row import CUT, RIGHT, Row
from loadtests.faults.evil.talk import STATUS, Talk, chunks
from loadtests.faults.evil.worker import sends
from loadtests.judging.answers import Verdict

Part = Callable[[Talk], bytes]


def _half_a_line(talk: Talk) -> bytes:
    next_piece = talk.pieces[len(talk.started)]
    return talk.beginning() + chunks(next_piece[: len(next_piece) // 2])


def _half_a_character(talk: Talk) -> bytes:
    event = talk.token("mé") if talk.stream else talk.whole[:30] + "é".encode()
    event = event.replace(rb"\u00e9", "é".encode())
    return talk.beginning() + chunks(event[: event.index(0xC3) + 1])


def _half_a_chunk(talk: Talk) -> bytes:
    return talk.beginning() + chunks(talk.pieces[len(talk.started)])[:-7]


def _all_but_the_end(talk: Talk) -> bytes:
    return talk.head() + chunks(*(talk.words if talk.stream else talk.started))


def _finished_but_not_done(talk: Talk) -> bytes:
    return talk.head() + chunks(*talk.pieces[:-1])


def _all_but_the_last_chunk(talk: Talk) -> bytes:
    return talk.head() + chunks(*talk.pieces)


PLACES: tuple[tuple[str, Part, Verdict], ...] = (
    ("before the status line", lambda talk: b"", RIGHT),
    ("inside the status line", lambda talk: STATUS[:9], RIGHT),
    ("inside the headers", lambda talk: talk.head()[:45], RIGHT),
    ("after the headers", lambda talk: talk.head(), RIGHT),
    ("between two events", Talk.beginning, CUT),
    ("inside a line", _half_a_line, CUT),
    ("inside a character", _half_a_character, CUT),
    ("inside a chunk's size", lambda talk: talk.beginning() + b"4", CUT),
    ("inside a chunk", _half_a_chunk, CUT),
    ("after the last token", _all_but_the_end, CUT),
    ("before the very last event", _finished_but_not_done, CUT),
    ("before the terminating chunk", _all_but_the_last_chunk, RIGHT),
)


def _rows() -> Iterator[Row]:
    for how, end in (("reset", Talk.reset), ("closed", Talk.finish)):
        for place, part, streamed in PLACES:
            yield Row(f"{how} {place}", sends(part, then=end), streamed)


CUTS = tuple(_rows())
