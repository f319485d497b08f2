-- Only where it is asked for: row-level security. Whoever is neither the owner of the tables nor exempt from it reads and
-- writes the rows of one tenant alone, in whatever words: those of the tenant that its role is bound to, or else of the
-- one that the transaction names in the setting milepost.tenant.

CREATE TABLE {tenant_role} (
    role name PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL
);
GRANT SELECT ON {tenant_role} TO PUBLIC;

-- Behind a policy an index over expressions is of no use: Postgres does not know that these keep secrets. Over columns it
-- is. (The parts "ns_start" and "key_start" of the statements.)
ALTER TABLE {checkpoint}
    ADD COLUMN ns_start text COLLATE "C" GENERATED ALWAYS AS (left(ns, 200)) STORED,
    ADD COLUMN key_start text COLLATE "C" GENERATED ALWAYS AS (left(coalesce(sort_key, id), 200)) STORED;
CREATE INDEX {checkpoint_start} ON {checkpoint} (thread, ns_start, key_start);

ALTER TABLE {thread} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {checkpoint} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {write} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {pack} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {call} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {step} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {tenant_role} ENABLE ROW LEVEL SECURITY;

-- The first two conditions are those of the index of a tenant's threads. No one may take the hash of another's thread.
CREATE POLICY tenant ON {thread} USING (
    left(id, 1) = chr(29)
    AND left(split_part(id, chr(29), 2), 256) = ({tenant_now})
    AND strpos(substr(id, 2, 257), chr(29)) > 0
) WITH CHECK (
    left(id, 1) = chr(29)
    AND left(split_part(id, chr(29), 2), 256) = ({tenant_now})
    AND strpos(substr(id, 2, 257), chr(29)) > 0
    AND hash = substring(sha256(convert_to(id, 'UTF8')) FOR 16)
);

-- What is seen of {thread} here is what the policy above lets through. A scalar is looked up for the row at hand; a set of
-- all that the tenant has would be made by some plans of EXISTS.
CREATE POLICY tenant ON {checkpoint} USING ((SELECT true FROM {thread} AS t WHERE t.key = thread));
CREATE POLICY tenant ON {write} USING ((SELECT true FROM {thread} AS t WHERE t.key = thread));
CREATE POLICY tenant ON {pack} USING ((SELECT true FROM {thread} AS t WHERE t.key = thread));
CREATE POLICY tenant ON {call} USING ((SELECT true FROM {thread} AS t WHERE t.key = thread));

-- These two are read by everybody, the second as far as it is about the reader, and changed by the owner.
CREATE POLICY tenant ON {step} FOR SELECT USING (true);
CREATE POLICY tenant ON {tenant_role} FOR SELECT USING (role = current_user);
