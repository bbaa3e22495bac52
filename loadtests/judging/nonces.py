"""A unique question, and its only right answer.

The simulated engine is asked about a word that occurs in none of the passages of the prompt. Its answer says so and
repeats the word. The word is the nonce, so the answer is known in advance to the last byte.
"""

from __future__ import annotations

import re

NONCE = re.compile(rb"k[0-9a-f]{15}(?![0-9a-f])")
NONCES = 16**15
MIX = 0x9E3779B97F4A7C15 | 1  # odd, so that multiplication by it is a bijection modulo 2^60
PASSAGE = '<passage id="1" doc="mill.md">The mill below the dam grinds barley slowly.</passage>'
TOKENS = re.compile(r" ?\w{1,6}| ?[^\w\s]")


def nonce(number: int) -> str:
    """The nonce of a request. Numbers below 2^60 have different nonces."""
    return f"k{number * MIX % NONCES:015x}"


def prompt(nonce: str) -> str:
    return f"{PASSAGE}\n\nQuestion: {nonce}"


def right(nonce: str) -> str:
    return f"None of the passages in the prompt speaks of {nonce}."


def tokens(text: str) -> list[str]:
    """A text in pieces whose concatenation is the text; a nonce spans three of them."""
    return TOKENS.findall(text)
