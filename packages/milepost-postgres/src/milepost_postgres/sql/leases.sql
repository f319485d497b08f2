-- The statements of leases.

-- name: acquire
-- Take the lease of a thread, unless somebody else holds it: see `milepost.fences.acquired`.
INSERT INTO {thread} AS thread (hash, id, generation, fence, owner, since, expires)
SELECT
    %(thread)s::bytea, %(thread_id)s::text, %(fresh)s::int8, floor(now * 1000000)::int8, %(owner)s::text, now,
    now + %(ttl)s::float8
FROM (SELECT {now} AS now) AS clock
ON CONFLICT (hash) DO UPDATE SET
    fence = CASE
        WHEN thread.owner = EXCLUDED.owner THEN thread.fence ELSE greatest(thread.fence + 1, EXCLUDED.fence)
    END,
    owner = EXCLUDED.owner,
    since = CASE WHEN thread.owner = EXCLUDED.owner THEN thread.since ELSE EXCLUDED.since END,
    expires = EXCLUDED.expires,
    tries = thread.tries + (
        thread.owner NOT IN ('', EXCLUDED.owner) AND thread.expires <= EXCLUDED.since
    )::int
WHERE thread.owner IN ('', EXCLUDED.owner) OR thread.expires <= EXCLUDED.since OR thread.fence = %(over)s::int8

-- name: renew
-- Have a lease expire later, if it is still the owner's.
UPDATE {thread} SET expires = {now} + %(ttl)s::float8
WHERE hash = %(thread)s::bytea AND owner = %(owner)s::text
RETURNING fence

-- name: release
-- Give a lease back, if it is the owner's.
UPDATE {thread} SET
    owner = '', since = {now}, expires = {now}, error = coalesce(%(error)s::text, ''),
    tries = CASE WHEN %(error)s::text IS NULL THEN 0 ELSE tries + 1 END
WHERE hash = %(thread)s::bytea AND owner = %(owner)s::text

-- name: lease
-- The lease of a thread.
SELECT owner, fence, since, expires, tries::int8, error FROM {thread} WHERE hash = %(thread)s::bytea

-- name: holder
-- The lease of a thread, if somebody holds it.
SELECT owner, fence, since, expires, tries::int8, error FROM {thread}
WHERE hash = %(thread)s::bytea AND owner <> '' AND expires > {now}
