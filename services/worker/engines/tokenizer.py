"""The simulated engine's tokenizer: pieces of text, counted exactly and joined without loss.

A token is a word fragment with the space before it, a short run of punctuation, or a run of white space: the shape of
byte-pair encodings, at about four characters a token in English prose. Every character is in exactly one of the three
classes, so the pieces of a text joined together are the text, byte for byte, and counting needs no vocabulary.
"""

from __future__ import annotations

import re

MAX_CHARS_PER_TOKEN = 8
_PIECE = re.compile(r" ?\w{1,6}| ?[^\w\s]{1,3}|\s{1,8}")


def tokenize(text: str) -> list[str]:
    """The text as tokens; `"".join(tokenize(text)) == text`."""
    return _PIECE.findall(text)


def count_tokens(text: str) -> int:
    """How many tokens the text has."""
    return len(_PIECE.findall(text))


def min_tokens(text: str) -> int:
    """A lower bound on the count, without looking at the text: what refuses an absurd prompt for free."""
    return -(-len(text) // MAX_CHARS_PER_TOKEN)
