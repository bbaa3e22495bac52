"""The statements that the fake PostgreSQL knows: the service's, by their exact text, and their effects.

Those of `weir ingest` alone are missing: its lock, moving documents, deleting vectors. A changed or new statement
raises `UnknownStatement`, which no handler of database errors catches. Tests over the real database cover the SQL.

Each statement works on a `View`: one tenant's corpus under the row policies. For another tenant's arguments it returns
nothing, changes nothing and may not insert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import numpy as np
from pgvector import HalfVector

from loadtests.cluster.corpora import Corpus, Document, halved
from services.retrieval import library, nearest, store, vectors, writing
from services.retrieval.modelfolder import DIMENSIONS

Row = dict[str, object]
NOTHING = Corpus(0)
MAX_TENANT = 128


class UnknownStatement(Exception):
    """A statement that the fake does not know."""


@dataclass(slots=True)
class View:
    """What one transaction sees and changes: its tenant's corpus, and figures of all tenants."""

    tenant: str
    corpus: Corpus | None
    all_corpora: Mapping[str, Corpus]
    clock_ms: int
    settings: Mapping[str, str]
    dimensions: int = DIMENSIONS

    def read(self, tenant: str) -> Corpus:
        return self.corpus if tenant == self.tenant and self.corpus is not None else NOTHING

    def owned(self, tenant: str, table: str) -> None:
        """Raises the error of a new row of another tenant."""
        if tenant != self.tenant:
            message = f'new row violates row-level security policy for table "{table}"'
            raise asyncpg.InsufficientPrivilegeError(message)

    def change(self, tenant: str, documents: Mapping[str, Document]) -> None:
        if tenant == self.tenant and self.corpus is not None:
            self.corpus = replace(self.corpus, documents=documents)


@dataclass(frozen=True, slots=True)
class Statement:
    """Its effect on a view and its command tag.

    `locks`: it waits for other writers of the tenant. `for_reader`: only the reader's role may execute it.
    """

    run: Callable[..., list[Row]]
    verb: str = "SELECT"
    locks: bool = False
    for_reader: bool = False
    searches: bool = False

    @property
    def writes(self) -> bool:
        return self.verb != "SELECT"


def next_version(view: View, tenant: str) -> list[Row]:
    view.owned(tenant, "corpora")
    if not 1 <= len(tenant) <= MAX_TENANT:
        raise asyncpg.CheckViolationError('new row for relation "corpora" violates check constraint')
    if view.corpus is None:
        view.corpus = Corpus(view.clock_ms)
    else:
        version = max(view.corpus.version + 1, view.clock_ms)
        view.corpus = replace(view.corpus, version=version, before=view.corpus.version)
    return [{"version": view.corpus.version}]


def put_document(
    view: View, tenant: str, doc_id: str, root: str, title: str, content_hash: str, version: int
) -> list[Row]:
    view.owned(tenant, "documents")
    if view.corpus is None:
        raise asyncpg.ForeignKeyViolationError('insert on table "documents" violates foreign key constraint')
    held = view.corpus.documents.get(doc_id, Document(root, title, content_hash, version))
    put = replace(held, root=root, title=title, content_hash=content_hash, version=version)
    view.change(tenant, {**view.corpus.documents, doc_id: put})
    return [{}]


def remove_chunks(view: View, tenant: str, doc_id: str) -> list[Row]:
    corpus = view.read(tenant)
    held = corpus.documents.get(doc_id)
    if held is None:
        return []
    view.change(tenant, {**corpus.documents, doc_id: replace(held, texts={}, vectors={})})
    return [{} for _ in held.texts]


def add_chunks(view: View, tenant: str, doc_id: str, texts: list[str]) -> list[Row]:
    if not texts:
        return []
    view.owned(tenant, "chunks")
    held = view.read(tenant).documents.get(doc_id)
    if held is None:
        raise asyncpg.ForeignKeyViolationError('insert on table "chunks" violates foreign key constraint')
    if held.texts:
        raise asyncpg.UniqueViolationError('duplicate key value violates unique constraint "chunks_pkey"')
    view.change(tenant, {**view.read(tenant).documents, doc_id: replace(held, texts=dict(enumerate(texts)))})
    return [{} for _ in texts]


def add_vectors(view: View, tenant: str, doc_id: str, model: str, made: list[Any]) -> list[Row]:
    if not made:
        return []
    view.owned(tenant, "vectors")
    held = view.read(tenant).documents.get(doc_id)
    if held is None or len(made) > len(held.texts):
        raise asyncpg.ForeignKeyViolationError('insert on table "vectors" violates foreign key constraint')
    if model in held.vectors:
        raise asyncpg.UniqueViolationError('duplicate key value violates unique constraint "vectors_pkey"')
    numbers = {ordinal: _kept(view, vector) for ordinal, vector in enumerate(made)}
    put = replace(held, vectors={**held.vectors, model: numbers})
    view.change(tenant, {**view.read(tenant).documents, doc_id: put})
    return [{} for _ in made]


def add_missing(
    view: View, tenant: str, model: str, doc_id: str, version: int, ordinals: list[int], made: list[Any]
) -> list[Row]:
    held = view.read(tenant).documents.get(doc_id)
    if held is None or held.version != version:
        return []
    before = held.vectors.get(model, {})
    new = {
        ordinal: _kept(view, vector) for ordinal, vector in zip(ordinals, made, strict=True) if ordinal not in before
    }
    put = replace(held, vectors={**held.vectors, model: {**before, **new}})
    view.change(tenant, {**view.read(tenant).documents, doc_id: put})
    return [{} for _ in new]


def remove_documents(view: View, tenant: str, doc_ids: list[str]) -> list[Row]:
    documents = view.read(tenant).documents
    view.change(tenant, {doc_id: held for doc_id, held in documents.items() if doc_id not in doc_ids})
    return [{} for doc_id in documents if doc_id in doc_ids]


def used(view: View, tenant: str) -> list[Row]:
    if view.read(tenant) is NOTHING:
        return []
    corpus = view.read(tenant)
    return [{"documents": len(corpus.documents), "bytes": corpus.bytes}]


def version_of(view: View, tenant: str) -> list[Row]:
    return [] if view.read(tenant) is NOTHING else [{"version": view.read(tenant).version}]


def held_documents(view: View, tenant: str, model: str) -> list[Row]:
    return [
        {
            "doc_id": doc_id,
            "root": held.root,
            "content_hash": held.content_hash,
            "unembedded": len(held.lacking(model)),
        }
        for doc_id, held in view.read(tenant).documents.items()
    ]


def one_document(view: View, tenant: str, doc_id: str, model: str) -> list[Row]:
    held = view.read(tenant).documents.get(doc_id)
    if held is None:
        return []
    counted = {"chunks": len(held.texts), "vectors": len(held.vectors.get(model, {}))}
    return [{"title": held.title, "content_hash": held.content_hash, "version": held.version, **counted}]


def page(view: View, tenant: str, after: str, limit: int) -> list[Row]:
    documents = view.read(tenant).documents
    return [
        {"doc_id": doc_id, "title": held.title, "version": held.version, "chunks": len(held.texts)}
        for doc_id, held in _after(documents, after)
    ][:limit]


def unembedded_chunks(view: View, tenant: str, model: str, doc_id: str, limit: int) -> list[Row]:
    held = view.read(tenant).documents.get(doc_id)
    lacking = held.lacking(model) if held is not None else []
    return [
        {"ordinal": ordinal, "text": held.texts[ordinal], "version": held.version}
        for ordinal in lacking[:limit]
        if held is not None
    ]


def corpora(view: View, limit: int) -> list[Row]:
    rows: list[Row] = [
        {"tenant": tenant, "version": corpus.version, "chunks": corpus.chunks}
        for tenant, corpus in sorted(view.all_corpora.items(), key=lambda each: -each[1].version)
    ]
    return rows[:limit]


def unembedded(view: View, model: str, limit: int) -> list[Row]:
    lacking = {row["tenant"]: view.all_corpora[str(row["tenant"])] for row in corpora(view, limit)}
    rows: list[Row] = [
        {"tenant": tenant, "chunks": corpus.chunks - corpus.embedded.get(model, 0)}
        for tenant, corpus in sorted(lacking.items(), key=lambda each: str(each[0]))
    ]
    return [row for row in rows if row["chunks"]]


def column_dimensions(view: View) -> list[Row]:
    return [{"atttypmod": view.dimensions}]


def exact(view: View, tenant: str, vector: Any, limit: int, model: str) -> list[Row]:
    _asked(view, vector)
    return view.read(tenant).search(vector, limit, model)


def exact_with_words(view: View, tenant: str, vector: Any, depth: int, model: str, query: str, top_k: int) -> list[Row]:
    """The words are those of the transaction's tenant, whatever the argument: see `weir_search_words`."""
    _asked(view, vector)
    return view.read(tenant).search_with_words(vector, depth, model, query, top_k)


def by_graph(view: View, tenant: str, vector: Any, limit: int, model: str) -> list[Row]:
    return exact(view, tenant, vector, min(limit, _rows_visited(view)), model)


def by_graph_with_words(
    view: View, tenant: str, vector: Any, depth: int, model: str, query: str, top_k: int
) -> list[Row]:
    return exact_with_words(view, tenant, vector, min(depth, _rows_visited(view)), model, query, top_k)


STATEMENTS: dict[str, Statement] = {
    writing.NEXT_VERSION: Statement(next_version, "INSERT 0", locks=True),
    writing.PUT_DOCUMENT: Statement(put_document, "INSERT 0", locks=True),
    writing.DOCUMENTS: Statement(held_documents),
    writing.USED: Statement(used),
    writing.REMOVE_CHUNKS: Statement(remove_chunks, "DELETE", locks=True),
    writing.ADD_CHUNKS: Statement(add_chunks, "INSERT 0", locks=True),
    writing.ADD_VECTORS: Statement(add_vectors, "INSERT 0", locks=True),
    writing.REMOVE_DOCUMENTS: Statement(remove_documents, "DELETE", locks=True),
    library.DOCUMENT: Statement(one_document),
    library.PAGE: Statement(page),
    library.VERSION: Statement(version_of),
    vectors.UNEMBEDDED: Statement(unembedded, for_reader=True),
    vectors.UNEMBEDDED_CHUNKS: Statement(unembedded_chunks),
    vectors.ADD_MISSING: Statement(add_missing, "INSERT 0", locks=True),
    vectors.COLUMN_DIMENSIONS: Statement(column_dimensions),
    store.CORPORA.sql: Statement(corpora, for_reader=True),
    nearest.EXACT: Statement(exact, searches=True),
    nearest.EXACT_WITH_WORDS: Statement(exact_with_words, for_reader=True, searches=True),
    nearest.APPROXIMATE: Statement(by_graph, searches=True),
    nearest.APPROXIMATE_WITH_WORDS: Statement(by_graph_with_words, for_reader=True, searches=True),
}


def _after(documents: Mapping[str, Document], after: str) -> Iterable[tuple[str, Document]]:
    return sorted((doc_id, held) for doc_id, held in documents.items() if doc_id > after)


def _kept(view: View, vector: Any) -> Any:
    numbers = vector.to_numpy() if isinstance(vector, HalfVector) else np.asarray(vector)
    if len(numbers) != view.dimensions:
        raise asyncpg.DataError(f"expected {view.dimensions} dimensions, not {len(numbers)}")
    return halved(numbers)


def _asked(view: View, vector: Any) -> None:
    if len(vector) != view.dimensions:
        raise asyncpg.DataError(f"different halfvec dimensions {view.dimensions} and {len(vector)}")


def _rows_visited(view: View) -> int:
    if "weir.rows_met" not in view.settings:
        raise asyncpg.UndefinedObjectError('unrecognized configuration parameter "weir.rows_met"')
    return int(view.settings["weir.rows_met"])
