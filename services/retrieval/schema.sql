-- Documents, their chunks, and how new a tenant's corpus is. Every row carries its tenant, every key begins with it.
-- Run under an advisory lock, and only when the database's schema is older than this file: see database.py. Every
-- statement may meet its own result, since the same file makes a database and brings an older one up to date.

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

-- How many chunks the tenant has: what a search of them costs is known before it is made. How many documents, and bytes
-- of text in its chunks: what its quota bounds. All three are kept by triggers, below.
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

-- What a model made of a chunk. Two models may have their vectors side by side: a service finds those of its own only,
-- so that a corpus can be embedded anew while it is searched. The primary key is also the index by which an exact
-- search finds one tenant's rows and nobody else's. Numbers of half precision: half the size, and docs/results/recall.md
-- says what they cost.
CREATE TABLE IF NOT EXISTS vectors (
    tenant    text         NOT NULL,
    doc_id    text         NOT NULL,
    ordinal   integer      NOT NULL,
    model     text         NOT NULL,
    embedding halfvec(384) NOT NULL,
    PRIMARY KEY (tenant, doc_id, ordinal, model),
    FOREIGN KEY (tenant, doc_id, ordinal) REFERENCES chunks ON DELETE CASCADE
);

-- An exact search reads every vector of a tenant: keep them in the row.
ALTER TABLE vectors ALTER COLUMN embedding SET STORAGE PLAIN;

-- Until version 4 a chunk's vector stood beside its text, and only one model was ever there: all-MiniLM-L6-v2, which is
-- named by the digest of its weights. Its owner may see all rows for that moment: see locks.sql.
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

-- The graph through which big tenants are searched: among all tenants' chunks, so small ones pay for it when they write.
-- Making it for a database that has chunks takes minutes, once. In parallel it would need shared memory, of which
-- containers have little.
SET LOCAL maintenance_work_mem = '256MB';
SET LOCAL max_parallel_maintenance_workers = 0;
CREATE INDEX IF NOT EXISTS vectors_by_distance ON vectors USING hnsw (embedding halfvec_cosine_ops);

-- Once for each statement, not for each row: a document's chunks come and go in one.
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

-- For a database that had chunks and documents before it counted them.
ALTER TABLE corpora NO FORCE ROW LEVEL SECURITY;
ALTER TABLE documents NO FORCE ROW LEVEL SECURITY;
UPDATE corpora SET
    (chunks, bytes) = (SELECT count(*), coalesce(sum(octet_length(text)), 0)
                       FROM chunks WHERE chunks.tenant = corpora.tenant),
    documents = (SELECT count(*) FROM documents WHERE documents.tenant = corpora.tenant);

INSERT INTO weir_schema (version) VALUES (5) ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
