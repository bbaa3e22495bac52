"""A question that no other resembles, and its only right answer.

The simulated engine is asked about a word that stands in none of the passages of the prompt; it says so and repeats
the word. The word is the nonce, and the answer is known beforehand to the last byte.
"""

from __future__ import annotations

import re

NONCE = re.compile(rb"k[0-9a-f]{15}(?![0-9a-f])")
NONCES = 16**15
MIX = 0x9E3779B97F4A7C15 | 1  # odd, so that no two numbers meet: multiplication by it is a bijection modulo 2^60
PASSAGE = '<passage id="1" doc="mill.md">The mill below the dam grinds barley slowly.</passage>'
TOKENS = re.compile(r" ?\w{1,6}| ?[^\w\s]")


def nonce(number: int) -> str:
    """The nonce of a request; two numbers below 2^60 have different ones."""
    return f"k{number * MIX % NONCES:015x}"


def prompt(nonce: str) -> str:
    """What is asked."""
    return f"{PASSAGE}\n\nQuestion: {nonce}"


def right(nonce: str) -> str:
    """The one right answer."""
    return f"None of the passages in the prompt speaks of {nonce}."


def tokens(text: str) -> list[str]:
    """A text in pieces that joined together are the text; a nonce is in three of them."""
    return TOKENS.findall(text)
