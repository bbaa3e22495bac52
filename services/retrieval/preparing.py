"""From bytes to texts that can be embedded: parsed, cut into chunks, and known by a digest.

The same bytes under the same name give the same chunks for as long as the chunking and the tokenizer stay; the digest
covers all of these, so equal digests mean equal chunks. What a model makes of the chunks is not in it: two models with
one tokenizer have the same chunks, and vectors of their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePath

from services.retrieval.chunks import CountTokens, chunk
from services.retrieval.documents import parse

CHUNKING = "2"  # part of every content hash: raise it when the same bytes give other chunks


@dataclass(frozen=True, slots=True)
class PreparedDocument:
    """A document, ready to be embedded."""

    title: str
    content_hash: str
    texts: list[str]


@dataclass(frozen=True, slots=True)
class DocumentPreparer:
    """Parses and chunks. `tokenizer` is the digest of the one whose tokens are counted."""

    count_tokens: CountTokens
    tokenizer: str
    chunk_tokens: int
    overlap_tokens: int

    def prepare(self, name: str, data: bytes) -> PreparedDocument:
        """The chunks of a document; the end of its name says of what kind it is. Raises Unreadable."""
        document = parse(name, data)
        texts = chunk(
            document.sections, self.count_tokens, max_tokens=self.chunk_tokens, overlap_tokens=self.overlap_tokens
        )
        return PreparedDocument(document.title, self.content_hash(name, data), texts)

    def content_hash(self, name: str, data: bytes) -> str:
        """What a document is known by."""
        sizes = f"{self.chunk_tokens}/{self.overlap_tokens}"
        made_by = f"{CHUNKING} {sizes} {self.tokenizer} {PurePath(name).suffix.lower()}\n"
        return hashlib.sha256(made_by.encode() + data).hexdigest()
