"""The simulated tokenizer counts exactly and loses nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.tokenizer import count_tokens, min_tokens, tokenize


@given(st.text())
def test_the_pieces_joined_are_the_text(text: str):
    assert "".join(tokenize(text)) == text


@given(st.text())
def test_the_count_is_the_number_of_pieces_and_never_below_its_lower_bound(text: str):
    assert count_tokens(text) == len(tokenize(text)) >= min_tokens(text)


def test_prose_has_about_four_characters_a_token():
    prose = "A weir holds a river at its level: what the turbines cannot take goes over the edge, in plain sight."
    assert 3.5 < len(prose) / count_tokens(prose) < 6
