"""Estimates a prompt's tokens from its bytes, before any engine has counted them.

Tokenizing a prompt costs more than rejecting it. Each answer brings the exact count, and the ratio of each model
follows it; until then four bytes count as a token, a rule of thumb for English.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from services.contracts.generate import Message
from services.core.estimator import Ratio
from services.router.rag.prompt import BYTES_PER_TOKEN

FIRST_TOKENS_PER_BYTE = 1 / BYTES_PER_TOKEN
FIRST_WEIGHT_BYTES = 4000.0
"""The first guess weighs as much as this many counted bytes."""
MESSAGE_BYTES = 16
"""Roughly what a chat template adds to each message."""
FIRST_PASSAGE_TOKENS = 120.0
PREFIX_BYTES = 256
"""Length of the prefix by which similar prompts are recognised."""


class Sizes:
    """Learned ratios: tokens per byte for each model, and tokens per passage."""

    __slots__ = ("_passages", "_per_byte")

    def __init__(self) -> None:
        self._per_byte: dict[str, Ratio] = {}
        self._passages = Ratio()

    def tokens(self, model: str, bytes: int) -> int:
        """The estimated tokens of `bytes` bytes of prompt; at least 1."""
        ratio = self._per_byte.get(model)
        rate = ratio.value if ratio is not None else None
        return max(1, ceil(bytes * (rate or FIRST_TOKENS_PER_BYTE)))

    def counted(self, model: str, bytes: int, tokens: int) -> None:
        """Learn from an engine's count. `model` comes from the worker list, so the set is closed."""
        if bytes <= 0 or tokens <= 0:
            return
        ratio = self._per_byte.get(model)
        if ratio is None:
            ratio = self._per_byte[model] = Ratio()
            ratio.add(FIRST_TOKENS_PER_BYTE * FIRST_WEIGHT_BYTES, FIRST_WEIGHT_BYTES)
        ratio.add(tokens, bytes)

    def context_tokens(self, top_k: int, limit: int) -> int:
        """The estimated tokens that `top_k` passages add to a prompt, at most `limit`."""
        each = self._passages.value or FIRST_PASSAGE_TOKENS
        return min(limit, ceil(top_k * each))

    def passages(self, count: int, tokens: int) -> None:
        if count > 0:
            self._passages.add(tokens, count)


def prompt_bytes(messages: Sequence[Message] | None, prompt: str | None) -> int:
    """Bytes that the model reads: the text, and MESSAGE_BYTES for each message."""
    if prompt is not None:
        return _size(prompt)
    total = 0
    for message in messages or ():
        total += MESSAGE_BYTES + _size(message.content)
    return total


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def affinity(messages: Sequence[Message] | None, prompt: str | None) -> int:
    """A hash of the prompt's beginning, equal for prompts that can share an engine's prefix cache; 0 for no prompt."""
    head = prompt if prompt is not None else messages[0].content if messages else ""
    return hash(head[:PREFIX_BYTES]) if head else 0
