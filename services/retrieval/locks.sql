-- The second lock. The first is `tenant = $1` in every statement; this one holds when a statement has forgotten it.
--
-- Row-level security shows a transaction the rows of the tenant that it has named in `weir.tenant`, and without a name
-- none. A superuser and a table's owner are not held by it (FORCE holds the owner), so no statement runs as either:
-- each transaction becomes `weir_reader` or `weir_writer`, which own nothing, cannot log in and may do little.
-- Run after schema.sql, in the same transaction.

DO $$
DECLARE
    -- From PostgreSQL 16 on, membership alone does not allow SET ROLE.
    modern  constant boolean := current_setting('server_version_num')::integer >= 160000;
    allowed constant text := CASE WHEN modern THEN 'SET' ELSE 'MEMBER' END;
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['weir_reader', 'weir_writer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN  -- roles belong to the whole server: another database's migration may be first
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

-- Without a name the setting is NULL, or '' in a session that had one: no tenant is called that.
DROP POLICY IF EXISTS own_tenant ON corpora;
DROP POLICY IF EXISTS own_tenant ON documents;
DROP POLICY IF EXISTS own_tenant ON chunks;
DROP POLICY IF EXISTS own_tenant ON vectors;
CREATE POLICY own_tenant ON corpora USING (tenant = current_setting('weir.tenant', true));
CREATE POLICY own_tenant ON documents USING (tenant = current_setting('weir.tenant', true));
CREATE POLICY own_tenant ON chunks USING (tenant = current_setting('weir.tenant', true));
CREATE POLICY own_tenant ON vectors USING (tenant = current_setting('weir.tenant', true));

-- The one view over all tenants, for the service that must know how new each corpus is: versions and sizes, no content.
-- The function runs as the owner, who may read `corpora` whole; nobody who is held by the lock is the owner.
DROP POLICY IF EXISTS every_version ON corpora;
CREATE POLICY every_version ON corpora FOR SELECT TO CURRENT_USER USING (true);
-- A body of this form is bound to the table when it is made: no search path can lead it to another of that name.
CREATE OR REPLACE FUNCTION weir_corpora(most integer) RETURNS TABLE (tenant text, version bigint, chunks bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT corpora.tenant, corpora.version, corpora.chunks FROM corpora ORDER BY corpora.version DESC LIMIT most;
END;
REVOKE ALL ON FUNCTION weir_corpora(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_corpora(integer) TO weir_reader;
