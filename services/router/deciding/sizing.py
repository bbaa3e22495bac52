"""How large a request is, before anyone has counted: tokens from bytes, at the rate that the model has shown.

Tokenizing a prompt costs more than refusing it, so at the door its length in tokens is estimated. Every answer tells
the exact count, and the ratio follows, model by model. A first guess serves until then: four bytes to a token, a rule
of thumb for English.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from services.contracts.generate import Message
from services.core.estimator import Ratio
from services.router.rag.prompt import BYTES_PER_TOKEN

FIRST_TOKENS_PER_BYTE = 1 / BYTES_PER_TOKEN
FIRST_WEIGHT_BYTES = 4000.0
"""The first guess counts as much as this many bytes that were counted."""
MESSAGE_BYTES = 16
"""What a chat template adds to each message, about."""
FIRST_PASSAGE_TOKENS = 120.0
PREFIX_BYTES = 256
"""Of a prompt, by which prompts that begin alike are known."""


class Sizes:
    """What has been learned of one model's tokens, and of how long its passages are."""

    __slots__ = ("_passages", "_per_byte")

    def __init__(self) -> None:
        self._per_byte: dict[str, Ratio] = {}
        self._passages = Ratio()

    def tokens(self, model: str, bytes: int) -> int:
        """About how many tokens that many bytes of prompt are; at least 1."""
        ratio = self._per_byte.get(model)
        rate = ratio.value if ratio is not None else None
        return max(1, ceil(bytes * (rate or FIRST_TOKENS_PER_BYTE)))

    def counted(self, model: str, bytes: int, tokens: int) -> None:
        """The engine has counted a prompt. `model` comes from the worker list, so the set is closed."""
        if bytes <= 0 or tokens <= 0:
            return
        ratio = self._per_byte.get(model)
        if ratio is None:
            ratio = self._per_byte[model] = Ratio()
            ratio.add(FIRST_TOKENS_PER_BYTE * FIRST_WEIGHT_BYTES, FIRST_WEIGHT_BYTES)
        ratio.add(tokens, bytes)

    def context_tokens(self, top_k: int, most: int) -> int:
        """About how many tokens `top_k` passages add to a prompt."""
        each = self._passages.value or FIRST_PASSAGE_TOKENS
        return min(most, ceil(top_k * each))

    def passages(self, count: int, tokens: int) -> None:
        """Retrieval has brought so many passages of so many tokens in all."""
        if count > 0:
            self._passages.add(tokens, count)


def prompt_bytes(messages: Sequence[Message] | None, prompt: str | None) -> int:
    """The size of what the model will read: its text, and a little for each message's frame."""
    if prompt is not None:
        return _size(prompt)
    return sum(_size(message.content) + MESSAGE_BYTES for message in messages or ())


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def affinity(messages: Sequence[Message] | None, prompt: str | None) -> int:
    """A number that prompts with the same beginning share: what an engine's prefix cache could have kept."""
    head = prompt if prompt is not None else messages[0].content if messages else ""
    return hash(head[:PREFIX_BYTES]) if head else 0
