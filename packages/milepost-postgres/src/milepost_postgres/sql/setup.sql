-- The statements that make the tables, and those of row-level security.

-- part: tenant_now
SELECT coalesce(
    (SELECT tenant FROM {tenant_role} WHERE role = current_user), nullif(current_setting('milepost.tenant', true), '')
)

-- name: as_tenant
-- Name the tenant that row-level security lets through, until the transaction ends.
SELECT set_config('milepost.tenant', %(tenant)s::text, true)

-- name: security
-- Which tables have no row-level security, whether it holds for this role, and the tenant that the role is bound to.
SELECT
    ARRAY(
        SELECT relname::text FROM pg_class
        WHERE oid = ANY (%(tables)s::text[]::regclass[]) AND NOT relrowsecurity ORDER BY relname
    ),
    row_security_active(%(thread)s::text), (SELECT tenant FROM {tenant_role} WHERE role = current_user)

-- name: lock_timeout
-- A group of writes does not wait long for one of them: they go one by one then.
SELECT set_config('lock_timeout', %(milliseconds)s::text, true)

-- name: probe
-- Whether anything is there, and what server and database it would be in.
SELECT
    to_regclass(%(table)s::text) IS NOT NULL, current_setting('server_version_num')::int8,
    current_setting('server_encoding'), current_setting('client_encoding')

-- name: applied
-- The steps that were carried out.
SELECT number::int8, phase FROM {step}

-- part: script
-- Carry out the steps that are missing, one process at a time.
DO $milepost$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended({lock}, 0));
    IF to_regnamespace({schema_name}) IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
    CREATE TABLE IF NOT EXISTS {step} (
        number integer NOT NULL, phase text NOT NULL, name text NOT NULL, at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (number, phase)
    );
{steps}
END
$milepost$;

-- part: script_step
    IF NOT EXISTS (SELECT FROM {step} WHERE number = {number} AND phase = {phase}) THEN
        INSERT INTO {step} (number, phase, name) VALUES ({number}, {phase}, {name});
        EXECUTE $step$
{text}
$step$;
    END IF;
