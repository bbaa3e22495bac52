"""Words of a text as `words.sql` parts them, in Python: small letters, names in parts and as a whole, and stop words.

PostgreSQL's parser also knows addresses, tags and numbers with signs as words of their own; this one does not, and
parts them at every sign.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 2000
MOST_WORDS = 16
TOO_COMMON = 100  # chunks: a word that more of them have is left out

_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"[^\W_]+(?:[/_.-]+[^\W_]+)+")
# What PostgreSQL 18's dictionary `english_stem` leaves out.
_STOP_WORDS = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it
its itself they them their theirs themselves what which who whom this that these those am is are was were be been
being have has had having do does did doing a an the and but if or because as until while of at by for with about
against between into through during before after above below to from up down in out on off over under again further
then once here there when where why how all any both each few more most other some such no nor not only own same so
than too very s t can will just don should now
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words_of(text: str) -> frozenset[str]:
    """Every word that is in it."""
    small = text.lower()
    return frozenset(_WORD.findall(small)) | frozenset(_NAME.findall(small))


def asked_words(query: str) -> list[str]:
    """The words that are looked for: the longest ones, without those that every English text has."""
    words = words_of(query[:MOST_CHARACTERS]) - STOP_WORDS
    return sorted(words, key=lambda word: (-len(word), word))[:MOST_WORDS]
