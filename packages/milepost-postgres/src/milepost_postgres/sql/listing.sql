-- The statements that list: checkpoints, threads, and what they take.

-- part: in_thread
c.thread = (SELECT key FROM {thread} WHERE hash = %(thread)s::bytea)

-- part: in_space
{ns_start} = left(%(ns)s::text, 200) AND c.ns = %(ns)s::text

-- part: of_id
c.id = %(id)s::text

-- part: before
-- Less than the key that the id has in the same namespace, or than the id.
{key} < coalesce((
    SELECT coalesce(b.sort_key, b.id) FROM {checkpoint} b
    WHERE b.thread = c.thread AND b.place = substring(
        sha256(sha256(convert_to(c.ns, 'UTF8')) || convert_to(%(before)s::text, 'UTF8')) FOR 16
    )
), %(before)s::text)

-- part: of_facets
-- No facet that differs. One that is missing says nothing: metadata may hold what is no facet and yet equal.
NOT EXISTS (
    SELECT FROM jsonb_each(%(facets)s::jsonb) AS f WHERE c.facets ? f.key AND c.facets -> f.key <> f.value
)

-- part: after
({key_start}, {key}, t.id, c.ns)
    < (left(%(after_key)s::text, 200), %(after_key)s::text, %(after_thread)s::text, %(after_ns)s::text)

-- part: within
starts_with(t.id, %(prefix)s::text)

-- part: within_tenant
-- The same for a prefix that has the name of a tenant: found in an index.
left(t.id, 1) = chr(29) AND left(split_part(t.id, chr(29), 2), 256) = split_part(%(prefix)s::text, chr(29), 2)
    AND starts_with(t.id, %(prefix)s::text)

-- part: listed_of_all
SELECT c.thread, c.place, t.id AS thread_id, t.generation, c.ns, {key} AS key
FROM {checkpoint} c JOIN {thread} t ON t.key = c.thread
WHERE {conditions}
ORDER BY {newest}, t.id DESC, c.ns DESC
LIMIT %(limit)s::int8

-- part: listed_within
-- The same of the threads whose id has a prefix: looked at one by one, whatever the planner knows of the others.
{listed_by_thread}
WHERE {within}
{listed_newest}

-- part: listed_of_tenant
{listed_by_thread}
WHERE {within_tenant}
{listed_newest}

-- part: listed_by_thread
SELECT t.key AS thread, c.place, t.id AS thread_id, t.generation, c.ns, c.key
FROM {thread} t CROSS JOIN LATERAL (
    SELECT c.place, c.ns, {key} AS key
    FROM {checkpoint} c
    WHERE c.thread = t.key AND {conditions}
    ORDER BY {newest}, c.ns DESC
    LIMIT %(limit)s::int8
) AS c

-- part: listed_newest
ORDER BY left(c.key, 200) DESC, c.key DESC, t.id DESC, c.ns DESC
LIMIT %(limit)s::int8

-- part: page
-- Checkpoints that meet some conditions, newest first.
WITH listed AS MATERIALIZED (
    {listed}
), numbered AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY left(key, 200) DESC, key DESC, thread_id DESC, ns DESC) AS ref FROM listed
), chosen AS MATERIALIZED (
    SELECT numbered.ref, numbered.thread, numbered.generation, {row}
    FROM numbered JOIN {checkpoint} c USING (thread, place)
), {pending}, sources AS (
    SELECT thread, spans FROM chosen WHERE %(items)s::int8 > 0
    UNION ALL
    SELECT thread, spans FROM pending WHERE %(items)s::int8 > 0
), {loaded}
UNION ALL
SELECT 0, key, generation, NULL, NULL, NULL, id, NULL, NULL, NULL, NULL, NULL, NULL
FROM {thread} WHERE key IN (SELECT thread FROM listed)

-- part: told_of_threads
-- What is told of a thread without reading a value.
SELECT
    t.key, t.id, head.id, n.namespaces, n.checkpoints, w.writes,
    (n.bytes + w.bytes + p.bytes)::int8, coalesce(t.created_at, least(n.since, w.since)),
    greatest(n.until, w.until), EXISTS (
        SELECT FROM {write} asked JOIN {checkpoint} c USING (thread, place)
        WHERE asked.thread = t.key AND asked.channel = '__interrupt__' AND NOT EXISTS (
            SELECT FROM {checkpoint} later
            WHERE later.thread = c.thread AND left(later.ns, 200) = left(c.ns, 200) AND later.ns = c.ns
                AND coalesce(later.sort_key, later.id) > {key}
        )
    ), t.owner, t.fence, t.since, t.expires, t.tries::int8, t.error, t.owner <> '' AND {now} < t.expires

-- part: next_threads
SELECT key, id, created_at, owner, fence, since, expires, tries, error FROM {thread} t
WHERE key > %(after)s::int8 AND (
    EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key) OR EXISTS (SELECT FROM {write} WHERE thread = t.key)
)

-- part: facts_of_threads
CROSS JOIN LATERAL (
    SELECT count(*) AS checkpoints, count(DISTINCT ns) AS namespaces, min(at) AS since, max(put_at) AS until,
        coalesce(sum(octet_length(header)), 0) AS bytes
    FROM {checkpoint} WHERE thread = t.key
) AS n
CROSS JOIN LATERAL (
    SELECT count(*) AS writes, min(at) AS since, max(at) AS until, coalesce(sum(octet_length(value)), 0) AS bytes
    FROM {write} WHERE thread = t.key
) AS w
CROSS JOIN LATERAL (
    SELECT coalesce(sum(octet_length(data)), 0) AS bytes FROM {pack} WHERE thread = t.key
) AS p
LEFT JOIN LATERAL (
    SELECT c.id FROM {checkpoint} c WHERE c.thread = t.key ORDER BY c.ns = '' DESC, c.ns DESC, {key} DESC LIMIT 1
) AS head ON true
ORDER BY t.key

-- name: threads
-- Threads by key.
{told_of_threads}
FROM ({next_threads} ORDER BY key LIMIT %(limit)s::int8) AS t
{facts_of_threads}

-- name: threads_within
-- Those whose id has a prefix.
{told_of_threads}
FROM ({next_threads} AND {within} ORDER BY key LIMIT %(limit)s::int8) AS t
{facts_of_threads}

-- name: threads_of_tenant
-- Those of a tenant.
{told_of_threads}
FROM ({next_threads} AND {within_tenant} ORDER BY key LIMIT %(limit)s::int8) AS t
{facts_of_threads}

-- name: stats
-- Counts and bytes of one thread.
SELECT
    (SELECT count(*) FROM {checkpoint} WHERE thread = t.key), (SELECT count(*) FROM {write} WHERE thread = t.key),
    (SELECT count(*) FROM {pack} WHERE thread = t.key),
    (
        coalesce((SELECT sum(octet_length(header)) FROM {checkpoint} WHERE thread = t.key), 0)
        + coalesce((SELECT sum(octet_length(value)) FROM {write} WHERE thread = t.key), 0)
        + coalesce((SELECT sum(octet_length(data)) FROM {pack} WHERE thread = t.key), 0)
    )::int8
FROM {thread} t WHERE hash = %(thread)s::bytea

-- name: stats_of_all
-- Counts and bytes of the store.
SELECT
    (SELECT count(*) FROM {thread} t WHERE EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key)
        OR EXISTS (SELECT FROM {write} WHERE thread = t.key)),
    c.n, w.n, p.n, (c.bytes + w.bytes + p.bytes)::int8
FROM (SELECT count(*) AS n, coalesce(sum(octet_length(header)), 0) AS bytes FROM {checkpoint}) AS c,
    (SELECT count(*) AS n, coalesce(sum(octet_length(value)), 0) AS bytes FROM {write}) AS w,
    (SELECT count(*) AS n, coalesce(sum(octet_length(data)), 0) AS bytes FROM {pack}) AS p
