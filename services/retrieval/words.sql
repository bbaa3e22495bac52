-- The words of a tenant's chunks, for the search by words. Runs after locks.sql, which creates the roles.
--
-- Under row-level security PostgreSQL uses no index for an operator that is not LEAKPROOF, so its usual full-text
-- search (`@@` and GIN) would read all chunks of the tenant. Instead only the owner reads this table. Retrieval calls a
-- function that keeps to the transaction's tenant and returns where words are, never the words
-- (docs/decisions/034-hybrid-ranking.md).

CREATE TABLE IF NOT EXISTS words (
    tenant  text     NOT NULL,
    doc_id  text     NOT NULL,
    ordinal integer  NOT NULL,
    keys    bigint[] NOT NULL,
    PRIMARY KEY (tenant, doc_id, ordinal),
    FOREIGN KEY (tenant, doc_id, ordinal) REFERENCES chunks ON DELETE CASCADE
);
ALTER TABLE words ENABLE ROW LEVEL SECURITY;
ALTER TABLE words FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS every_word ON words;
CREATE POLICY every_word ON words TO CURRENT_USER USING (true);
REVOKE ALL ON words FROM PUBLIC;

-- The words of a text in lower case, unstemmed, in any language that separates words; names such as `x-weir-class` and
-- `retrieval_budget_ms` both in parts and whole.
CREATE OR REPLACE FUNCTION weir_words(content text) RETURNS text[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN tsvector_to_array(to_tsvector('pg_catalog.simple'::regconfig, translate(content, '/_.-', '    ')))
        || ARRAY(SELECT DISTINCT name[1] FROM regexp_matches(
            lower(content), '[[:alnum:]]+(?:[/_.-]+[[:alnum:]]+)+', 'g') AS name);

-- A secret of this database, readable by the owner only. See weir_word_keys.
CREATE TABLE IF NOT EXISTS weir_secret (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    word_seed bigint  NOT NULL
);
REVOKE ALL ON weir_secret FROM PUBLIC;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM weir_secret) THEN
        INSERT INTO weir_secret (word_seed) VALUES (hashtextextended(gen_random_uuid()::text, 0));
        DELETE FROM words;  -- keys made without the secret; all are made again below
    END IF;
END
$$;

-- A word's key is a digest of the word, the tenant and the database's secret. So each tenant has index entries of its
-- own, and other tenants' chunks and words do not change the cost of its searches. The digest is not cryptographic, but
-- its seed differs by tenant, and no tenant knows a seed or sees a key. So no tenant can choose words with the keys of
-- another tenant's word, to make that word too common to be found.
CREATE OR REPLACE FUNCTION weir_word_keys(tenant text, words text[], seed bigint) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ARRAY(SELECT hashtextextended(word, hashtextextended(tenant, seed)) FROM unnest(words) AS word);

CREATE OR REPLACE FUNCTION weir_add_words() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO words SELECT tenant, doc_id, ordinal, weir_word_keys(tenant, weir_words(text), word_seed)
    FROM added, weir_secret;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION weir_add_words() SET search_path = pg_catalog, %I, pg_temp', current_schema());
END
$$;
CREATE OR REPLACE TRIGGER chunks_have_words AFTER INSERT ON chunks
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION weir_add_words();

-- In how many of a tenant's chunks a word is. A search reads it first, and looks for rare words only: to find by the
-- index itself that a word is common took most of its time. Writers of a tenant are serialised by its row in `corpora`.
CREATE TABLE IF NOT EXISTS word_counts (
    tenant text   NOT NULL,
    key    bigint NOT NULL,
    chunks bigint NOT NULL CHECK (chunks > 0),
    PRIMARY KEY (tenant, key)
) WITH (fillfactor = 80); -- room for changed rows, so that the index stays as it is
ALTER TABLE word_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE word_counts FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS every_count ON word_counts;
CREATE POLICY every_count ON word_counts TO CURRENT_USER USING (true);
REVOKE ALL ON word_counts FROM PUBLIC;

CREATE OR REPLACE FUNCTION weir_count_words() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO word_counts SELECT tenant, key, count(*) FROM moved, unnest(keys) AS key GROUP BY tenant, key
        ON CONFLICT (tenant, key) DO UPDATE SET chunks = word_counts.chunks + excluded.chunks;
    ELSE
        WITH gone AS (
            SELECT tenant, key, count(*) AS number FROM moved, unnest(keys) AS key GROUP BY tenant, key
        ), last AS (
            DELETE FROM word_counts AS held USING gone
            WHERE held.tenant = gone.tenant AND held.key = gone.key AND held.chunks <= gone.number
        )
        UPDATE word_counts AS held SET chunks = held.chunks - gone.number FROM gone
        WHERE held.tenant = gone.tenant AND held.key = gone.key AND held.chunks > gone.number;
    END IF;
    RETURN NULL;
END
$$;
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION weir_count_words() SET search_path = pg_catalog, %I, pg_temp', current_schema());
END
$$;
CREATE OR REPLACE TRIGGER words_added AFTER INSERT ON words
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_words();
CREATE OR REPLACE TRIGGER words_removed AFTER DELETE ON words
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_words();

-- For databases older than these tables. NO FORCE lets the owner see all rows meanwhile (locks.sql).
ALTER TABLE chunks NO FORCE ROW LEVEL SECURITY;
INSERT INTO words SELECT tenant, doc_id, ordinal, weir_word_keys(tenant, weir_words(text), word_seed)
FROM chunks, weir_secret
WHERE NOT EXISTS (
    SELECT FROM words
    WHERE words.tenant = chunks.tenant AND words.doc_id = chunks.doc_id AND words.ordinal = chunks.ordinal);
ALTER TABLE chunks FORCE ROW LEVEL SECURITY;
DELETE FROM word_counts;
INSERT INTO word_counts SELECT tenant, key, count(*) FROM words, unnest(keys) AS key GROUP BY tenant, key;

-- Without fastupdate: each search would have to read its list of pending entries until the next vacuum.
CREATE INDEX IF NOT EXISTS words_by_key ON words USING gin (keys) WITH (fastupdate = off);

-- The chunks of the transaction's tenant that share the rarest words with the query, best first, ties by id. A word's
-- weight is its rarity among the tenant's chunks (Robertson and Sparck Jones 1976).
--
-- The cost is bounded: 2,000 characters, the 16 longest words, and no word that more than 100 chunks have, since it
-- says little about each. English stop words are skipped at once. Only the index is used. gin_fuzzy_search_limit cuts
-- its long lists, which only a key of several tenants can have. The tenant is compared outside of the LIMIT; inside, the
-- planner might use its index and read all its chunks. Weights are added in the order of the words, not of their keys:
-- the last digit of a sum, which decides between equals, is the same in every database.
CREATE OR REPLACE FUNCTION weir_search_words(query text, most bigint)
    RETURNS TABLE (doc_id text, ordinal integer, score double precision)
    LANGUAGE sql STABLE SECURITY DEFINER ROWS 20
    SET search_path = pg_catalog, pg_temp
    SET gin_fuzzy_search_limit = 1000 SET enable_seqscan = off SET enable_bitmapscan = on SET enable_sort = on
BEGIN ATOMIC
    SELECT few.doc_id, few.ordinal, sum(
        ln(1 + (corpora.chunks + 0.5::double precision - rare.chunks) / (rare.chunks + 0.5::double precision))
        ORDER BY asked.place)
    FROM corpora
    CROSS JOIN unnest(weir_word_keys(current_setting('weir.tenant', true), ARRAY(
        SELECT word FROM unnest(weir_words(left(query, 2000))) AS word
        WHERE ts_lexize('pg_catalog.english_stem'::regdictionary, word) IS DISTINCT FROM '{}'
        ORDER BY length(word) DESC, word LIMIT 16
    ), (SELECT word_seed FROM weir_secret))) WITH ORDINALITY AS asked (key, place)
    CROSS JOIN LATERAL (
        SELECT held.chunks, asked.key FROM word_counts AS held
        WHERE held.tenant = corpora.tenant AND held.key = asked.key AND held.chunks <= 100 LIMIT 1
    ) AS rare
    CROSS JOIN LATERAL (
        SELECT words.tenant, words.doc_id, words.ordinal FROM words WHERE words.keys @> ARRAY[rare.key] LIMIT 101
    ) AS few
    WHERE corpora.tenant = current_setting('weir.tenant', true) AND few.tenant = current_setting('weir.tenant', true)
    GROUP BY few.doc_id, few.ordinal
    ORDER BY 3 DESC, 1, 2
    LIMIT most;
END;
REVOKE ALL ON FUNCTION weir_search_words(text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_search_words(text, bigint) TO weir_reader;

-- Before version 5 keys were made without a secret.
DROP FUNCTION IF EXISTS weir_word_keys(text, text[]);
