"""The simulated engine's tokenizer: exact counts without a vocabulary.

A token is a word fragment with the space before it, a run of punctuation or of white space: about four characters of
English.
"""

from __future__ import annotations

import re

MAX_CHARS_PER_TOKEN = 8
_PIECE = re.compile(r" ?\w{1,6}| ?[^\w\s]{1,3}|\s{1,8}")


def tokenize(text: str) -> list[str]:
    """The text as tokens; `"".join(tokenize(text)) == text`."""
    return _PIECE.findall(text)


def count_tokens(text: str) -> int:
    return len(_PIECE.findall(text))


def min_tokens(text: str) -> int:
    """A lower bound on the count in constant time, to reject oversized prompts."""
    return -(-len(text) // MAX_CHARS_PER_TOKEN)
