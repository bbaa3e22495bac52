"""Text to tokens and back: chat templates, prompts, and answers that are shown token by token.

Chat messages go through the model's own template. A model without one gets the plainest: a line `role: content` for
each message, and `assistant:` at the end. A prompt is taken as it is; either way the tokenizer's special tokens come
with it, once.

A token is not a piece of text: in the common vocabularies it is some bytes, and a character may need several tokens.
`Detokenizer` shows what is certain and holds back what the next token may still change, so the pieces joined are
exactly the decoded whole.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from services.contracts.generate import GenerateRequest, Message
from services.runtime.errors import BadInput

REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
MAX_HELD_TOKENS = 64  # longer runs of broken bytes are shown as they are

Decode = Callable[[list[int]], str]


class Prompts:
    """Turns requests into token ids. Safe to call from any thread, also while answers are decoded."""

    def __init__(self, tokenizer: Any, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # a fast tokenizer refuses to be used while its settings are changed
        self._context_tokens = context_tokens
        self._longest_token = _longest_token(tokenizer)

    def ids(self, request: GenerateRequest) -> list[int]:
        """The prompt's tokens. Raises BadInput for one that cannot be answered within the context."""
        field = "messages" if request.prompt is None else "prompt"
        ids = self._tokenized(request, field)
        if not ids:
            raise BadInput("the prompt has no tokens", field)
        if len(ids) >= self._context_tokens:
            raise self._too_long(f"a prompt of {len(ids)} tokens", field)
        if len(ids) + request.max_tokens > self._context_tokens:
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
        if len(text) > self._longest_token * self._context_tokens:  # without spending seconds on it
            raise self._too_long(f"a prompt of {len(text)} characters", field)
        try:
            ids: list[int] = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        except (UnicodeError, TypeError) as error:  # half of a surrogate pair
            raise BadInput(f"the text cannot be tokenized: {error}", field) from None
        if not ids and special and self._tokenizer.bos_token_id is not None:
            return [self._tokenizer.bos_token_id]
        return ids

    def _templated(self, messages: list[Message]) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # it is a program that came with the model: it can raise anything
            raise BadInput(f"the model's chat template refuses these messages: {error}", "messages") from None
        return text

    def _too_long(self, what: str, field: str) -> BadInput:
        limit = f"this worker's context of {self._context_tokens} tokens"
        return BadInput(f"{what} do not fit {limit}", field, code="context_length_exceeded")


class Detokenizer:
    """One answer's tokens to text, piece by piece.

    It decodes a short window: the tokens not settled and those shown last, since a token may read differently without
    what stands before it (a leading space). What trails off in replacement characters waits for the next token.
    """

    __slots__ = ("_decode", "_ids", "_settled", "_shown")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []  # the window
        self._settled = 0  # how many of them are certain
        self._shown = ""  # what has been shown of the window

    def push(self, token: int) -> str:
        """What this token makes certain; may be empty."""
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
        """What was held back, once it is certain that no more tokens come."""
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        """The part of it that is new."""
        piece = text[len(self._shown) :]
        if piece:
            self._shown = text
        return piece


def decoder(tokenizer: Any) -> Decode:
    """Decode tokens as they are, special ones left out; on a copy, so that `Prompts` may run at the same time."""
    tokenizer = copy.deepcopy(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # ten times faster than by way of its wrapper
        decode: Decode = backend.decode
        return decode

    def decode_slowly(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    return decode_slowly


def plain_chat(messages: list[Message]) -> str:
    """What a model without a chat template is given."""
    lines = [f"{message.role}: {message.content}" for message in messages]
    return "\n".join([*lines, "assistant:"])


def _longest_token(tokenizer: Any) -> int:
    """No token stands for more characters than this."""
    return max((len(token) for token in tokenizer.get_vocab()), default=1)
