-- How many of a tenant's chunks each model has embedded, so that missing vectors are known without a scan.
-- Runs after locks.sql, which creates the roles.

CREATE TABLE IF NOT EXISTS embedded (
    tenant text   NOT NULL,
    model  text   NOT NULL,
    chunks bigint NOT NULL,
    PRIMARY KEY (tenant, model)
);

-- Per statement, not per row.
CREATE OR REPLACE FUNCTION weir_count_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO embedded AS held (tenant, model, chunks)
        SELECT tenant, model, count(*) FROM moved GROUP BY tenant, model ORDER BY tenant, model
        ON CONFLICT (tenant, model) DO UPDATE SET chunks = held.chunks + excluded.chunks;
    ELSE
        UPDATE embedded AS held SET chunks = held.chunks - changed.number
        FROM (SELECT tenant, model, count(*) AS number FROM moved GROUP BY tenant, model) AS changed
        WHERE held.tenant = changed.tenant AND held.model = changed.model;
        DELETE FROM embedded WHERE chunks = 0 AND tenant IN (SELECT tenant FROM moved);
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER vectors_added AFTER INSERT ON vectors
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_vectors();
CREATE OR REPLACE TRIGGER vectors_removed AFTER DELETE ON vectors
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION weir_count_vectors();

-- For databases older than this count. NO FORCE lets the owner see all rows meanwhile (locks.sql).
ALTER TABLE vectors NO FORCE ROW LEVEL SECURITY;
ALTER TABLE embedded NO FORCE ROW LEVEL SECURITY;
DELETE FROM embedded;
INSERT INTO embedded SELECT tenant, model, count(*) FROM vectors GROUP BY tenant, model;
ALTER TABLE vectors FORCE ROW LEVEL SECURITY;

REVOKE ALL ON embedded FROM PUBLIC;
GRANT SELECT ON embedded TO weir_reader;
GRANT SELECT, INSERT, UPDATE, DELETE ON embedded TO weir_writer;
ALTER TABLE embedded ENABLE ROW LEVEL SECURITY;
ALTER TABLE embedded FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own_tenant ON embedded;
CREATE POLICY own_tenant ON embedded USING (tenant = current_setting('weir.tenant', true));

-- A view over all tenants: numbers, no content. See weir_corpora.
DROP POLICY IF EXISTS every_count ON embedded;
CREATE POLICY every_count ON embedded FOR SELECT TO CURRENT_USER USING (true);
CREATE OR REPLACE FUNCTION weir_embedded() RETURNS TABLE (tenant text, model text, chunks bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT embedded.tenant, embedded.model, embedded.chunks FROM embedded;
END;
REVOKE ALL ON FUNCTION weir_embedded() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_embedded() TO weir_reader;
