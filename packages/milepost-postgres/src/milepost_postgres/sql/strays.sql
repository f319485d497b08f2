-- The statements that find what is left of threads.

-- part: void
-- Whether nothing of the thread t counts: neither what is stored, nor a tombstone or a lease. A fence is made of the time:
-- the next one is greater if the last one was of the past, and whoever had that is as late as a write that a tombstone
-- would refuse.
NOT EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key) AND NOT EXISTS (SELECT FROM {write} WHERE thread = t.key)
    AND NOT EXISTS (SELECT FROM {pack} WHERE thread = t.key) AND NOT EXISTS (SELECT FROM {call} WHERE thread = t.key)
    AND (t.tombstone IS NULL OR {forgotten})
    AND (t.fence = 0 OR t.fence < {now} * 1000000 AND {now} - greatest(t.since, t.expires) >= 604800)

-- part: told_of_strays
SELECT
    t.key, t.id, (
        coalesce((SELECT sum(octet_length(header)) FROM {checkpoint} WHERE thread = t.key AND alone.yes), 0)
        + coalesce((SELECT sum(octet_length(data)) FROM {pack} WHERE thread = t.key AND alone.yes), 0)
    )::int8, alone.yes, {void}
FROM (SELECT * FROM {thread} t WHERE key > %(after)s::int8

-- part: facts_of_strays
ORDER BY key LIMIT %(limit)s::int8) AS t CROSS JOIN LATERAL (
    SELECT NOT EXISTS (SELECT FROM {write} WHERE thread = t.key)
        AND NOT EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key AND ns <> %(attachments)s::text)
        AND (EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key) OR EXISTS (SELECT FROM {pack} WHERE thread = t.key))
        AS yes
) AS alone
ORDER BY t.key

-- name: strays
-- The next threads by key: the bytes of packs or attachments that are alone, whether there are such, and whether nothing of
-- the thread counts.
{told_of_strays} {facts_of_strays}

-- name: strays_within
-- Those whose id has a prefix.
{told_of_strays} AND {within} {facts_of_strays}

-- name: strays_of_tenant
-- Those of a tenant.
{told_of_strays} AND {within_tenant} {facts_of_strays}

-- name: strays_lock
-- Keep everybody out of these rows until the transaction ends.
SELECT key FROM {thread} WHERE key = ANY (%(keys)s::int8[]) ORDER BY key FOR UPDATE

-- name: strays_gone
-- Remove those of them of which nothing counts.
DELETE FROM {thread} t WHERE key = ANY (%(keys)s::int8[]) AND {void} RETURNING key
