"""Stop strings are never emitted, wherever the token borders fall."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.stops import StopFilter

LETTERS = st.text("ab\n", max_size=30)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)


def shown(tokens: list[str], stops: list[str]) -> tuple[str, bool]:
    stop_filter, out = StopFilter(stops), ""
    for token in tokens:
        out += stop_filter.feed(token)
        if stop_filter.stopped:
            return out, True
    return out + stop_filter.flush(), False


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """Letter by letter: the first prefix that ends in a stop string, without it."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(1, 5), min_size=1))
def test_the_cut_does_not_depend_on_the_tokens(text: str, stops: list[str], sizes: list[int]):
    tokens, at = [], 0
    while at < len(text):
        size = sizes[len(tokens) % len(sizes)]
        tokens.append(text[at : at + size])
        at += size
    assert shown(tokens, stops) == reference(text, stops)


def test_a_stop_string_split_over_three_tokens_is_not_seen():
    assert shown(["one E", "N", "D two"], ["END"]) == ("one ", True)


def test_text_that_only_begins_like_a_stop_string_is_shown_in_the_end():
    assert shown(["one E", "N"], ["END"]) == ("one EN", False)


def test_without_stop_strings_every_token_passes_as_it_is():
    stop_filter = StopFilter([])
    assert [stop_filter.feed(token) for token in ("a", " b")] == ["a", " b"]


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopFilter(["x", ""])
