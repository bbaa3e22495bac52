"""From a file's bytes to texts that can be embedded: parsed, chunked, and identified by a digest.

The digest covers name suffix, bytes, chunk sizes and tokenizer, so equal digests mean equal chunks. It does not cover
the model: two models with one tokenizer share the chunks and have vectors of their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePath

from services.retrieval.chunks import CountTokens, chunk
from services.retrieval.documents import parse

CHUNKING = "2"  # part of every content hash; raise it when the chunks of the same bytes change


@dataclass(frozen=True, slots=True)
class PreparedDocument:
    title: str
    content_hash: str
    texts: list[str]


@dataclass(frozen=True, slots=True)
class DocumentPreparer:
    """Parses and chunks. `tokenizer` is the digest of the tokenizer whose tokens `count_tokens` counts."""

    count_tokens: CountTokens
    tokenizer: str
    chunk_tokens: int
    overlap_tokens: int

    def prepare(self, name: str, data: bytes) -> PreparedDocument:
        """The chunks of a document; the suffix of `name` gives its kind. Raises UnreadableDocument."""
        document = parse(name, data)
        texts = chunk(
            document.sections, self.count_tokens, max_tokens=self.chunk_tokens, overlap_tokens=self.overlap_tokens
        )
        return PreparedDocument(document.title, self.content_hash(name, data), texts)

    def content_hash(self, name: str, data: bytes) -> str:
        """The digest that identifies the document, a SHA-256 in hexadecimal."""
        sizes = f"{self.chunk_tokens}/{self.overlap_tokens}"
        made_by = f"{CHUNKING} {sizes} {self.tokenizer} {PurePath(name).suffix.lower()}\n"
        return hashlib.sha256(made_by.encode() + data).hexdigest()
