"""Words of a text as in `words.sql`: lower case, names in parts and whole, without stop words.

PostgreSQL's parser also treats addresses, tags and signed numbers as words; this one splits at every sign.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 2000
MAX_WORDS = 16
TOO_COMMON = 100  # chunks: more frequent words are ignored

_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"[^\W_]+(?:[/_.-]+[^\W_]+)+")
# The stop words of PostgreSQL 18's dictionary `english_stem`.
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
    small = text.lower()
    return frozenset(_WORD.findall(small)) | frozenset(_NAME.findall(small))


def asked_words(query: str) -> list[str]:
    """The words to search for: the longest, without stop words."""
    words = words_of(query[:MAX_CHARACTERS]) - STOP_WORDS
    return sorted(words, key=lambda word: (-len(word), word))[:MAX_WORDS]
