"""Text to token ids and back: chat templates, prompts, and incremental decoding.

Messages use the model's chat template, or a line `role: content` each and `assistant:` where it has none. Special
tokens are added once, for a prompt too.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from services.contracts.generate import GenerateRequest, Message
from services.runtime.errors import BadInput

REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
MAX_HELD_TOKENS = 64  # longer runs of broken bytes are emitted as they are

Decode = Callable[[list[int]], str]


class Prompts:
    """Turns requests into token ids. Thread-safe, also while answers are decoded."""

    def __init__(self, tokenizer: Any, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # a fast tokenizer cannot be used while its settings change
        self._context_tokens = context_tokens
        self._longest_token = _longest_token(tokenizer)

    def ids(self, request: GenerateRequest) -> list[int]:
        """The prompt's token ids. Raises BadInput if prompt and `max_tokens` do not fit the context."""
        field = "messages" if request.prompt is None else "prompt"
        ids = self._tokenized(request, field)
        if not ids:
            raise BadInput("the prompt has no tokens", field)
        if len(ids) >= self._context_tokens:
            raise self._too_long(f"a prompt of {len(ids)} tokens", field)
        if request.max_tokens is not None and len(ids) + request.max_tokens > self._context_tokens:
            raise self._too_long(f"a prompt of {len(ids)} tokens and {request.max_tokens} more", "max_tokens")
        return ids

    def _tokenized(self, request: GenerateRequest, field: str) -> list[int]:
        with self._lock:
            if request.prompt is not None:
                return self._encode(request.prompt, field, special=True)
            messages = request.messages or []
            if self._tokenizer.chat_template is None:
                return self._encode(plain_chat(messages), field, special=True)
            return self._encode(self._templated(messages), field, special=False)

    def _encode(self, text: str, field: str, *, special: bool) -> list[int]:
        if len(text) > self._longest_token * self._context_tokens:  # tokenizing it could take seconds
            raise self._too_long(f"a prompt of {len(text)} characters", field)
        try:
            ids: list[int] = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        except (UnicodeError, TypeError) as error:  # a lone surrogate
            raise BadInput(f"the text cannot be tokenized: {error}", field) from None
        if not ids and special and self._tokenizer.bos_token_id is not None:
            return [self._tokenizer.bos_token_id]
        return ids

    def _templated(self, messages: list[Message]) -> str:
        chat = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is a program from the model: it can raise anything
            raise BadInput(f"the model's chat template refuses these messages: {error}", "messages") from None
        return text

    def _too_long(self, what: str, field: str) -> BadInput:
        limit = f"this worker's context of {self._context_tokens} tokens"
        return BadInput(f"{what} do not fit {limit}", field, code="context_length_exceeded")


class Detokenizer:
    """Decodes one answer's tokens incrementally; the joined pieces are the decoded whole.

    It decodes a window of the unsettled tokens and those emitted last, since a token's text depends on the one before.
    Trailing replacement characters (a part of a character) wait for the next token.
    """

    __slots__ = ("_decode", "_ids", "_settled", "_shown")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []  # the window's tokens
        self._settled = 0  # how many of them are settled
        self._shown = ""  # the part of the window's text that was emitted

    def push(self, token: int) -> str:
        """The text that this token makes certain; may be empty."""
        self._ids.append(token)
        text = self._decode(self._ids)
        certain = text.rstrip(REPLACEMENT)
        if len(certain) < len(text) and len(self._ids) < MAX_HELD_TOKENS:
            return self._show(certain)
        piece = self._show(text)
        self._ids = self._ids[self._settled :]
        self._settled = len(self._ids)
        self._shown = self._decode(self._ids)
        return piece

    def flush(self) -> str:
        """Return the text that was held back. Called when no more tokens follow."""
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        piece = text[len(self._shown) :]
        if piece:
            self._shown = text
        return piece


def decoder(tokenizer: Any) -> Decode:
    """A function that decodes token ids without special tokens, on a copy: `Prompts` may run at the same time."""
    tokenizer = copy.deepcopy(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # ten times faster than its wrapper
        decode: Decode = backend.decode
        return decode

    def decode_slowly(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return decode_slowly


def plain_chat(messages: list[Message]) -> str:
    """The prompt for a model without a chat template."""
    lines = [f"{message.role}: {message.content}" for message in messages]
    return "\n".join([*lines, "assistant:"])


def _longest_token(tokenizer: Any) -> int:
    return max((len(token) for token in tokenizer.get_vocab()), default=1)
