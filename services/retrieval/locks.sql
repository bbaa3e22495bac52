-- Row-level security, the second lock: it holds when a statement lacks the first one, `tenant = $1`.
--
-- A transaction sees the rows of the tenant named in `weir.tenant`, and none without a name. Superusers are exempt, and
-- owners without FORCE. So each transaction becomes `weir_reader` or `weir_writer`, which own nothing, cannot log in
-- and may do little. Runs after schema.sql, in the same transaction. See docs/decisions/030-two-locks.md.

DO $$
DECLARE
    -- Since PostgreSQL 16, membership alone does not allow SET ROLE.
    modern  constant boolean := current_setting('server_version_num')::integer >= 160000;
    allowed constant text := CASE WHEN modern THEN 'SET' ELSE 'MEMBER' END;
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['weir_reader', 'weir_writer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN  -- roles belong to the server, so another database's migration may create them first
                EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        IF NOT pg_has_role(current_user, name, allowed) THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', name);
        END IF;
        IF NOT has_schema_privilege(name, current_schema(), 'USAGE') THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
        END IF;
    END LOOP;
END
$$;

REVOKE ALL ON corpora, documents, chunks, vectors, weir_schema FROM PUBLIC;
GRANT SELECT ON corpora, documents, chunks, vectors TO weir_reader;
GRANT SELECT, INSERT, UPDATE, DELETE ON corpora, documents, chunks, vectors TO weir_writer;

ALTER TABLE corpora ENABLE ROW LEVEL SECURITY;
ALTER TABLE documents ENABLE ROW LEVEL SECURITY;
ALTER TABLE chunks ENABLE ROW LEVEL SECURITY;
ALTER TABLE vectors ENABLE ROW LEVEL SECURITY;
ALTER TABLE corpora FORCE ROW LEVEL SECURITY;
ALTER TABLE documents FORCE ROW LEVEL SECURITY;
ALTER TABLE chunks FORCE ROW LEVEL SECURITY;
ALTER TABLE vectors FORCE ROW LEVEL SECURITY;

-- Without a name the setting is NULL, or '' in a session that had one; no tenant has that name.
DROP POLICY IF EXISTS own_tenant ON corpora;
DROP POLICY IF EXISTS own_tenant ON documents;
DROP POLICY IF EXISTS own_tenant ON chunks;
DROP POLICY IF EXISTS own_tenant ON vectors;
CREATE POLICY own_tenant ON corpora USING (tenant = current_setting('weir.tenant', true));
CREATE POLICY own_tenant ON documents USING (tenant = current_setting('weir.tenant', true));
CREATE POLICY own_tenant ON chunks USING (tenant = current_setting('weir.tenant', true));
CREATE POLICY own_tenant ON vectors USING (tenant = current_setting('weir.tenant', true));

-- The only view over all tenants: corpus versions and sizes, no content. The function runs as the owner, who may read
-- all of `corpora`; no transaction of a service runs as the owner.
DROP POLICY IF EXISTS every_version ON corpora;
CREATE POLICY every_version ON corpora FOR SELECT TO CURRENT_USER USING (true);
-- BEGIN ATOMIC binds the body to this table at creation, so no search path can redirect it.
CREATE OR REPLACE FUNCTION weir_corpora(most integer) RETURNS TABLE (tenant text, version bigint, chunks bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT corpora.tenant, corpora.version, corpora.chunks FROM corpora ORDER BY corpora.version DESC LIMIT most;
END;
REVOKE ALL ON FUNCTION weir_corpora(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_corpora(integer) TO weir_reader;
