-- Documents, their chunks, and each tenant's corpus version. Every row carries its tenant, every key begins with it.
-- database.py runs this under an advisory lock if the schema is older. The same file creates a database and updates an
-- older one, so every statement must be repeatable.

CREATE EXTENSION IF NOT EXISTS vector;

-- One row: the version of these files that the database has.
CREATE TABLE IF NOT EXISTS weir_schema (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  integer NOT NULL
);

-- `version` grows with every change of the tenant's documents: the time of the change in milliseconds, or one more than
-- before. So a database that was wiped and filled again never repeats a version that a cache may hold.
CREATE TABLE IF NOT EXISTS corpora (
    tenant  text   PRIMARY KEY CHECK (length(tenant) BETWEEN 1 AND 128),
    version bigint NOT NULL
);

-- The number of chunks decides how the tenant is searched; documents and bytes of text are bounded by its quota. The
-- triggers below maintain all three.
ALTER TABLE corpora ADD COLUMN IF NOT EXISTS chunks bigint NOT NULL DEFAULT 0;
ALTER TABLE corpora ADD COLUMN IF NOT EXISTS documents bigint NOT NULL DEFAULT 0;
ALTER TABLE corpora ADD COLUMN IF NOT EXISTS bytes bigint NOT NULL DEFAULT 0;

-- `doc_id` is the path below `root`, the ingested folder. `content_hash` covers the bytes and the chunking, so equal
-- hashes mean equal chunks. `version` is the corpus version that brought this content.
CREATE TABLE IF NOT EXISTS documents (
    tenant       text   NOT NULL REFERENCES corpora,
    doc_id       text   NOT NULL,
    root         text   NOT NULL,
    title        text   NOT NULL,
    content_hash text   NOT NULL,
    version      bigint NOT NULL,
    PRIMARY KEY (tenant, doc_id)
);

CREATE TABLE IF NOT EXISTS chunks (
    tenant  text    NOT NULL,
    doc_id  text    NOT NULL,
    ordinal integer NOT NULL,
    text    text    NOT NULL,
    PRIMARY KEY (tenant, doc_id, ordinal),
    FOREIGN KEY (tenant, doc_id) REFERENCES documents ON DELETE CASCADE
);

-- Vectors by model. A service searches those of its own model only, so a corpus can be embedded with another one while
-- it is searched. The primary key is also the index of an exact search. Half precision halves the size;
-- docs/results/recall.md gives the cost.
CREATE TABLE IF NOT EXISTS vectors (
    tenant    text         NOT NULL,
    doc_id    text         NOT NULL,
    ordinal   integer      NOT NULL,
    model     text         NOT NULL,
    embedding halfvec(384) NOT NULL,
    PRIMARY KEY (tenant, doc_id, ordinal, model),
    FOREIGN KEY (tenant, doc_id, ordinal) REFERENCES chunks ON DELETE CASCADE
);

-- An exact search reads every vector of a tenant, so vectors are stored in the row.
ALTER TABLE vectors ALTER COLUMN embedding SET STORAGE PLAIN;

-- Before version 4 a chunk's vector stood beside its text, always of all-MiniLM-L6-v2, here by the fingerprint of its
-- weights. NO FORCE lets the owner see all rows meanwhile (locks.sql).
ALTER TABLE chunks NO FORCE ROW LEVEL SECURITY;
ALTER TABLE vectors NO FORCE ROW LEVEL SECURITY;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute
               WHERE attrelid = 'chunks'::regclass AND attname = 'embedding' AND NOT attisdropped) THEN
        INSERT INTO vectors SELECT tenant, doc_id, ordinal, '165fa9b8b5ce87cc', embedding::halfvec(384) FROM chunks;
        ALTER TABLE chunks DROP COLUMN embedding;
    END IF;
END
$$;

-- The graph for big tenants. It holds the chunks of all tenants, so small ones pay for it when they write. Building it
-- over existing chunks takes minutes, once. A parallel build would need shared memory, of which containers have little.
SET LOCAL maintenance_work_mem = '256MB';
SET LOCAL max_parallel_maintenance_workers = 0;
CREATE INDEX IF NOT EXISTS vectors_by_distance ON vectors USING hnsw (embedding halfvec_cosine_ops);

-- Per statement, not per row: one statement adds or removes all chunks of a document.
CREATE OR REPLACE FUNCTION weir_count_chunks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        UPDATE corpora SET chunks = corpora.chunks + changed.number, bytes = corpora.bytes + changed.bytes
        FROM (SELECT tenant, count(*) AS number, sum(octet_length(text)) AS bytes FROM moved GROUP BY tenant) AS changed
        WHERE corpora.tenant = changed.tenant;
    ELSE
        UPDATE corpora SET chunks = corpora.chunks - changed.number, bytes = corpora.bytes - changed.bytes
        FROM (SELECT tenant, count(*) AS number, sum(octet_length(text)) AS bytes FROM moved GROUP BY tenant) AS changed
        WHERE corpora.tenant = changed.tenant;
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER chunks_added AFTER INSERT ON chunks
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_chunks();
CREATE OR REPLACE TRIGGER chunks_removed AFTER DELETE ON chunks
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_chunks();

CREATE OR REPLACE FUNCTION weir_count_documents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE corpora SET documents = corpora.documents + changed.number
    FROM (SELECT tenant, count(*) * CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END AS number
          FROM moved GROUP BY tenant) AS changed
    WHERE corpora.tenant = changed.tenant;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER documents_added AFTER INSERT ON documents
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_documents();
CREATE OR REPLACE TRIGGER documents_removed AFTER DELETE ON documents
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_documents();

-- For databases older than these counts.
ALTER TABLE corpora NO FORCE ROW LEVEL SECURITY;
ALTER TABLE documents NO FORCE ROW LEVEL SECURITY;
UPDATE corpora SET
    (chunks, bytes) = (SELECT count(*), coalesce(sum(octet_length(text)), 0)
                       FROM chunks WHERE chunks.tenant = corpora.tenant),
    documents = (SELECT count(*) FROM documents WHERE documents.tenant = corpora.tenant);

INSERT INTO weir_schema (version) VALUES (6) ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
