-- Documents, their chunks, and how new a tenant's corpus is. Every row carries its tenant, every key begins with it.
-- Run under an advisory lock, and only when the database's schema is older than this file: see store.py.

CREATE EXTENSION IF NOT EXISTS vector;

-- One row: which of these files the database has seen.
CREATE TABLE IF NOT EXISTS weir_schema (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);

-- `version` grows with every change of the tenant's documents. It is the time of the change in milliseconds, or one
-- more than before: a database that was wiped and filled again never repeats a version that a cache may remember.
CREATE TABLE IF NOT EXISTS corpora (
    tenant  text   PRIMARY KEY CHECK (length(tenant) BETWEEN 1 AND 128),
    version bigint NOT NULL
);

-- `doc_id` is the path below `root`, the ingested folder. `content_hash` covers the bytes, the chunking and the model,
-- so equal hashes mean that there is nothing to do. `version` is the corpus version that brought this content.
CREATE TABLE IF NOT EXISTS documents (
    tenant       text   NOT NULL REFERENCES corpora,
    doc_id       text   NOT NULL,
    root         text   NOT NULL,
    title        text   NOT NULL,
    content_hash text   NOT NULL,
    version      bigint NOT NULL,
    PRIMARY KEY (tenant, doc_id)
);

-- The primary key is also the index by which an exact search finds one tenant's rows and nobody else's.
CREATE TABLE IF NOT EXISTS chunks (
    tenant    text        NOT NULL,
    doc_id    text        NOT NULL,
    ordinal   integer     NOT NULL,
    text      text        NOT NULL,
    embedding vector(384) NOT NULL,
    PRIMARY KEY (tenant, doc_id, ordinal),
    FOREIGN KEY (tenant, doc_id) REFERENCES documents ON DELETE CASCADE
);

-- An exact search reads every vector of a tenant: keep them in the row, and let the text move out of line instead.
ALTER TABLE chunks ALTER COLUMN embedding SET STORAGE PLAIN;

INSERT INTO weir_schema (version) VALUES (1) ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
