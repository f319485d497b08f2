-- The statements of the store. "name" begins one, with what it is for; "part" begins a piece that others include as
-- {piece}. Tables stand in braces too; they are replaced by qualified names. Parameters are those of store.py.
--
-- READ COMMITTED is enough for all of them: a statement that locks a row of thread sees the latest version of that row,
-- and what must see all that was committed before the lock was had is a statement of its own, after it.

-- part: key
coalesce(c.sort_key, c.id)

-- part: key_start
left(coalesce(c.sort_key, c.id), 200)

-- part: ns_start
left(c.ns, 200)

-- part: newest
{key_start} DESC, {key} DESC

-- part: now
extract(epoch FROM clock_timestamp())::float8

-- part: row
c.place, c.ns, c.id, c.parent, {key} AS key, c.at, c.facets, c.spans[:] AS spans, c.header

-- part: here
-- A generation that was named must be the thread's own.
{present}, admitted AS MATERIALIZED (
    SELECT key FROM here WHERE {admissible}
)

-- part: admissible
(%(generation)s::int8 IS NULL OR generation = %(generation)s::int8) AND {in_time} AND NOT EXISTS (SELECT FROM refused)

-- part: present
-- The thread, made where it is not there. `here` has its latest state.
made AS (
    INSERT INTO {thread} AS thread (hash, id, generation, created_at)
    SELECT %(thread)s::bytea, %(thread_id)s::text, %(fresh)s::int8, {now}
    WHERE %(generation)s::int8 IS NULL AND NOT EXISTS (SELECT FROM locked)
    ON CONFLICT (hash) DO UPDATE SET generation = thread.generation
    RETURNING key, generation, tombstone, floor, fence, deleted_at
), here AS (
    SELECT * FROM locked UNION ALL SELECT * FROM made
), {refused}

-- part: refused
-- The first of the checkpoints that a write descends from which is of the thread's deleted past, or the one that is put.
refused AS (
    SELECT named.id
    FROM here, (
        SELECT * FROM unnest(%(named)s::text[]) WITH ORDINALITY UNION ALL SELECT %(own)s::text, NULL
    ) AS named (id, nr)
    WHERE here.tombstone IS NOT NULL AND NOT {forgotten}
        AND (named.nr IS NOT NULL AND named.id < here.floor OR named.id = ANY (here.tombstone))
        AND NOT EXISTS (SELECT FROM {checkpoint} c WHERE c.thread = here.key AND c.id = named.id)
    ORDER BY named.nr
    LIMIT 1
)

-- part: forgotten
-- Whether a tombstone counts no more: `milepost.store.TOMBSTONE_LIFE`.
{now} - coalesce(deleted_at, 'infinity'::float8) >= 604800

-- part: in_time
-- Whether nobody has taken the thread's lease from the writer.
(%(fence)s::int8 IS NULL OR fence <= %(fence)s::int8)

-- part: later
(SELECT fence FROM here WHERE NOT {in_time})

-- part: there
-- The same for a thread that is there and was never deleted; nothing otherwise. Nearly every put is to such a thread,
-- and a shorter statement is carried out faster.
admitted AS MATERIALIZED (
    SELECT key FROM locked
    WHERE tombstone IS NULL AND (%(generation)s::int8 IS NULL OR generation = %(generation)s::int8) AND {in_time}
)

-- part: locked_to_put
locked AS MATERIALIZED (
    SELECT key, generation, tombstone, floor, fence, deleted_at FROM {thread} WHERE hash = %(thread)s::bytea FOR NO KEY UPDATE
)

-- part: locked_to_write
locked AS MATERIALIZED (
    SELECT key, generation, tombstone, floor, fence, deleted_at FROM {thread} WHERE hash = %(thread)s::bytea FOR KEY SHARE
)

-- part: put_row
-- `above` is the parent's key; of one that is not stored, its id.
above AS MATERIALIZED (
    SELECT coalesce((
        SELECT {key} FROM admitted JOIN {checkpoint} c ON c.thread = admitted.key AND c.place = %(above)s::bytea
    ), %(parent)s::text) COLLATE "C" AS key
), stored AS (
    INSERT INTO {checkpoint}
        (thread, stamp, at, put_at, place, ns, id, parent, sort_key, facets, spans, header)
    SELECT
        admitted.key, %(stamp)s::int8, {now}, {now}, %(place)s::bytea, %(ns)s::text, %(id)s::text, %(parent)s::text,
        {sort_key}, %(facets)s::jsonb, %(spans)s::int8[], %(header)s::bytea
    FROM admitted, above
    ON CONFLICT (thread, place) DO UPDATE SET
        stamp = EXCLUDED.stamp, put_at = EXCLUDED.put_at, parent = EXCLUDED.parent, facets = EXCLUDED.facets,
        spans = EXCLUDED.spans, header = EXCLUDED.header
)

-- part: put_packs
packed AS (
    INSERT INTO {pack} (thread, writer, first, count, data)
    SELECT admitted.key, p.*
    FROM admitted, unnest(%(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[], %(data)s::bytea[]) AS p
    ON CONFLICT (thread, writer, first) DO NOTHING
)

-- name: put
-- Store a checkpoint and its packs: (whether it was stored, generation, refused id, greater fence).
WITH {locked_to_put}, {here}, {put_row}, {put_packs}
SELECT EXISTS (SELECT FROM admitted), (SELECT generation FROM here), (SELECT id FROM refused), {later}

-- name: put_at_head
-- The same if the latest checkpoint, where there is one, is one of %(heads)s, or if it replaces one: adds the latest id
-- where that is not so. To be sure of what is latest, it comes after a statement that holds the thread.
WITH {locked_to_put}, {present}, t AS MATERIALIZED (
    SELECT key FROM here
), moved AS MATERIALIZED (
    SELECT c.id FROM ({by_newest}) AS newest JOIN {checkpoint} c USING (thread, place)
    WHERE c.id <> ALL (%(heads)s::text[]) AND NOT EXISTS (
        SELECT FROM {checkpoint} own WHERE own.thread = c.thread AND own.place = %(place)s::bytea
    )
), admitted AS MATERIALIZED (
    SELECT key FROM here WHERE {admissible} AND NOT EXISTS (SELECT FROM moved)
), {put_row}, {put_packs}
SELECT
    EXISTS (SELECT FROM admitted), (SELECT generation FROM here), (SELECT id FROM refused), {later},
    (SELECT id FROM moved)

-- name: hold
-- Keep other puts out until the transaction ends.
SELECT key FROM {thread} WHERE hash = %(thread)s::bytea FOR NO KEY UPDATE

-- name: make
-- The same for a thread that need not be there.
INSERT INTO {thread} AS thread (hash, id, generation, created_at)
VALUES (%(thread)s::bytea, %(thread_id)s::text, %(fresh)s::int8, {now})
ON CONFLICT (hash) DO UPDATE SET generation = thread.generation

-- name: put_there
-- The same where the thread is there.
WITH {locked_to_put}, {there}, {put_row}, {put_packs}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8 FROM locked

-- name: put_there_alone
-- The same for a checkpoint that needs nothing newly.
WITH {locked_to_put}, {there}, {put_row}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8 FROM locked

-- part: sort_key
-- `milepost.store.sort_key` of %(id)s under a parent with above.key; NULL where it is the id.
CASE
    WHEN above.key IS NULL OR %(id)s::text > above.key THEN NULL
    WHEN strpos(above.key, chr(1)) > 0 AND split_part(above.key, chr(1), 1) || chr(1) || %(id)s::text > above.key
        THEN split_part(above.key, chr(1), 1) || chr(1) || %(id)s::text
    ELSE above.key || chr(1) || %(id)s::text
END

-- part: write_rows
stored AS (
    INSERT INTO {write}
        (thread, stamp, at, idx, place, slot, ns, checkpoint, task, path, channel, spans, value)
    SELECT
        admitted.key, %(stamp)s::int8, {now}, u.idx, %(place)s::bytea, u.slot, %(ns)s::text, %(id)s::text, u.task,
        u.path, u.channel, u.spans::int8[], u.value
    FROM admitted, unnest(
        %(tasks)s::text[], %(slots)s::bytea[], %(idxs)s::int8[], %(paths)s::text[], %(channels)s::text[],
        %(spans)s::text[], %(values)s::bytea[]
    ) AS u (task, slot, idx, path, channel, spans, value)
    ON CONFLICT (thread, place, slot, idx) DO UPDATE SET
        stamp = EXCLUDED.stamp, at = EXCLUDED.at, task = EXCLUDED.task, path = EXCLUDED.path,
        channel = EXCLUDED.channel, spans = EXCLUDED.spans, value = EXCLUDED.value
        WHERE EXCLUDED.idx < 0
    RETURNING slot, idx
)

-- part: write_packs
-- The packs of the rows that were stored.
packed AS (
    INSERT INTO {pack} (thread, writer, first, count, data)
    SELECT admitted.key, p.writer, p.first, p.count, p.data
    FROM admitted, stored JOIN unnest(
        %(pack_slots)s::bytea[], %(pack_idxs)s::int8[], %(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[],
        %(data)s::bytea[]
    ) AS p (slot, idx, writer, first, count, data) USING (slot, idx)
    ON CONFLICT (thread, writer, first) DO NOTHING
)

-- part: given
-- The rows and their packs, numbered.
given AS MATERIALIZED (
    SELECT nr, task, slot, idx::int4 AS idx, path, channel, spans::int8[] AS spans, value
    FROM unnest(
        %(tasks)s::text[], %(slots)s::bytea[], %(idxs)s::int8[], %(paths)s::text[], %(channels)s::text[],
        %(spans)s::text[], %(values)s::bytea[]
    ) WITH ORDINALITY AS u (task, slot, idx, path, channel, spans, value, nr)
), packs AS MATERIALIZED (
    SELECT nr, writer, first, count
    FROM unnest(%(rows)s::int8[], %(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[])
        AS p (nr, writer, first, count)
)

-- part: accepted
    ARRAY(
        SELECT given.nr FROM given JOIN stored USING (slot, idx)
        UNION
        -- The repetition of a call that was applied: the very same row, and its pack.
        SELECT given.nr
        FROM admitted, given JOIN {write} w USING (slot, idx, task, path, channel, spans, value)
        WHERE (SELECT count(*) FROM stored) < (SELECT count(*) FROM given)
            AND w.thread = admitted.key AND w.place = %(place)s::bytea AND NOT EXISTS (
                SELECT FROM packs
                WHERE packs.nr = given.nr AND NOT EXISTS (
                    SELECT FROM {pack} p
                    WHERE p.thread = w.thread AND p.writer = packs.writer AND p.first = packs.first
                        AND p.count = packs.count
                )
            )
    )::int8[]

-- name: put_writes
-- Store pending writes: (whether it was decided, generation, refused id, greater fence, numbers of the accepted rows
-- from 1 on).
WITH {locked_to_write}, {here}, {write_rows}, {write_packs}, {given}
SELECT EXISTS (SELECT FROM admitted), (SELECT generation FROM here), (SELECT id FROM refused), {later}, {accepted}

-- name: put_writes_there
-- The same where the thread is there. Instead of numbers, how many were stored: when that is not all of them, the
-- statement above is to say which are accepted.
WITH {locked_to_write}, {there}, {write_rows}, {write_packs}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8, (SELECT count(*) FROM stored) FROM locked

-- name: put_writes_there_alone
-- The same for writes that need nothing newly.
WITH {locked_to_write}, {there}, {write_rows}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8, (SELECT count(*) FROM stored) FROM locked

-- part: wanted
-- The runs of addresses in `sources`, merged. (An array is unnested where a function would do as well, because the
-- planner takes an array to be short: it must not come to think that reading all packs of the store is the better way.)
wanted AS MATERIALIZED (
    SELECT merged.thread, merged.writer, lower(run) AS first, upper(run) AS past
    FROM (
        SELECT
            thread, u.writer,
            range_agg(int8range(spans[u.i::int4 + 1], spans[u.i::int4 + 1] + spans[u.i::int4 + 2])) AS runs
        FROM sources, unnest(spans) WITH ORDINALITY AS u (writer, i)
        WHERE mod(u.i, 3) = 1
        GROUP BY thread, u.writer
    ) AS merged, unnest(ARRAY(SELECT unnest(merged.runs))) AS run
)

-- part: packs
-- Packs that begin in a run, and those that begin before one and reach into it. Answers of several kinds come as one
-- table: (kind, ref, a, b, c, at, t1, t2, t3, t4, t5, spans, data).
SELECT
    3::int2 AS kind, wanted.thread AS ref, wanted.writer AS a, p.first AS b, p.count::int8 AS c, NULL::float8 AS at,
    NULL::text AS t1, NULL::text AS t2, NULL::text AS t3, NULL::text AS t4, NULL::text AS t5, NULL::int8[] AS spans,
    p.data
FROM wanted CROSS JOIN LATERAL (
    SELECT p.first, p.count, p.data FROM {pack} p
    WHERE p.thread = wanted.thread AND p.writer = wanted.writer
        AND p.first >= wanted.first AND p.first < wanted.past
    OFFSET 0
) AS p
UNION ALL
SELECT 3, early.thread, early.writer, early.first, p.count, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p.data
FROM (
    SELECT DISTINCT wanted.thread, wanted.writer, before.first
    FROM wanted CROSS JOIN LATERAL (
        SELECT p.first, p.count FROM {pack} p
        WHERE p.thread = wanted.thread AND p.writer = wanted.writer AND p.first < wanted.first
        ORDER BY p.first DESC
        LIMIT 1
    ) AS before
    WHERE before.first + before.count > wanted.first
) AS early CROSS JOIN LATERAL (
    SELECT p.count, p.data FROM {pack} p
    WHERE p.thread = early.thread AND p.writer = early.writer AND p.first = early.first
    OFFSET 0
) AS p

-- part: loaded
-- The rows of `chosen`, their `pending` writes, and every pack that overlaps a span of `sources`.
{wanted}
{packs}
UNION ALL
SELECT 1, ref, thread, generation, NULL, at, ns, id, parent, key, NULL, spans, header
FROM chosen
UNION ALL
SELECT 2, ref, idx, NULL, NULL, NULL, task, path, channel, NULL, NULL, spans, value
FROM pending

-- part: pending
pending AS MATERIALIZED (
    SELECT chosen.ref, chosen.thread, w.task, w.idx, w.path, w.channel, w.spans[:] AS spans, w.value
    FROM chosen JOIN {write} w USING (thread, place)
)

-- part: both
sources AS (
    SELECT thread, spans FROM chosen UNION ALL SELECT thread, spans FROM pending
)

-- part: thread_row
t AS MATERIALIZED (
    SELECT key, generation FROM {thread} WHERE hash = %(thread)s::bytea
)

-- part: by_place
SELECT c.thread, c.place FROM {checkpoint} c WHERE c.thread = (SELECT key FROM t) AND c.place = %(place)s::bytea

-- part: by_newest
-- The beginning of the greatest key is found in the index; nearly always it is the whole key.
SELECT c.thread, c.place FROM {checkpoint} c
WHERE c.thread = (SELECT key FROM t) AND {in_space} AND {key_start} = (
    SELECT {key_start} FROM {checkpoint} c
    WHERE c.thread = (SELECT key FROM t) AND {in_space}
    ORDER BY {key_start} DESC
    LIMIT 1
)
ORDER BY {key} DESC
LIMIT 1

-- part: one
chosen AS MATERIALIZED (
    SELECT 0::int8 AS ref, t.key AS thread, t.generation, {row}
    FROM found JOIN {checkpoint} c USING (thread, place) JOIN t ON t.key = c.thread
), {pending}, {both}, {loaded}

-- name: get
-- One checkpoint with its writes and packs.
WITH {thread_row}, found AS MATERIALIZED ({by_place}), {one}

-- name: get_latest
-- The newest checkpoint of a namespace with its writes and packs.
WITH {thread_row}, found AS MATERIALIZED ({by_newest}), {one}

-- part: ancestors
-- From `found`, which comes along as number 0, to its ancestor number %(limit)s.
chain AS (
    SELECT 0::int8 AS ref, c.thread, c.place, c.parent FROM found JOIN {checkpoint} c USING (thread, place)
    UNION ALL
    SELECT chain.ref + 1, c.thread, c.place, c.parent
    FROM chain JOIN {checkpoint} c
        ON c.thread = chain.thread
        AND c.place = substring(sha256(%(space)s::bytea || convert_to(chain.parent, 'UTF8')) FOR 16)
    WHERE chain.ref < %(limit)s::int8
), chosen AS MATERIALIZED (
    SELECT chain.ref, t.key AS thread, t.generation, {row}
    FROM chain JOIN {checkpoint} c USING (thread, place) JOIN t ON t.key = c.thread
), pending AS MATERIALIZED (
    SELECT chosen.ref, chosen.thread, w.task, w.idx, w.path, w.channel, w.spans[:] AS spans, w.value
    FROM chosen JOIN {write} w USING (thread, place)
    WHERE chosen.ref > 0 AND (%(channels)s::text[] IS NULL OR w.channel = ANY (%(channels)s::text[]))
), sources AS (
    SELECT thread, spans FROM pending
), {loaded}

-- name: lineage
-- A checkpoint and its ancestors, with writes of these to some channels and the packs of those writes.
WITH RECURSIVE {thread_row}, found AS MATERIALIZED ({by_place}), {ancestors}

-- name: lineage_latest
-- The same from the newest checkpoint of a namespace on.
WITH RECURSIVE {thread_row}, found AS MATERIALIZED ({by_newest}), {ancestors}

-- name: fetch
-- The packs that overlap some spans.
WITH {thread_row}, sources AS (
    SELECT key AS thread, %(spans)s::int8[] AS spans FROM t
), {wanted}
{packs}

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

-- part: token
-- What every put and every stored write changes: stamps are random, and only ever replaced or added.
(
    SELECT concat_ws(':', t.generation, c.n, c.stamps, w.n, w.stamps)
    FROM (SELECT count(*) AS n, coalesce(sum(stamp), 0) AS stamps FROM {checkpoint} WHERE thread = t.key) AS c,
        (SELECT count(*) AS n, coalesce(sum(stamp), 0) AS stamps FROM {write} WHERE thread = t.key) AS w
)

-- name: token
-- The state of a thread.
SELECT {token} FROM {thread} t WHERE hash = %(thread)s::bytea

-- name: chart
-- Everything of a thread but packs' bytes; kind 0 has the token, and `at` of a pack is how many bytes it has.
WITH {thread_row}
SELECT
    0::int2 AS kind, 0::int8 AS ref, t.key AS a, t.generation AS b, 0::int8 AS c, NULL::float8 AS at,
    {token} AS t1, NULL::text AS t2, NULL::text AS t3, NULL::text AS t4, NULL::text AS t5, NULL::int8[] AS spans,
    NULL::bytea AS data
FROM t
UNION ALL
SELECT 1, 0, thread, t.generation, NULL, c.at, c.ns, c.id, c.parent, {key}, c.facets::text, c.spans, c.header
FROM t JOIN {checkpoint} c ON c.thread = t.key
UNION ALL
SELECT 2, 0, w.idx, NULL, NULL, NULL, w.task, w.path, w.channel, w.ns, w.checkpoint, w.spans, w.value
FROM t JOIN {write} w ON w.thread = t.key
UNION ALL
SELECT 3, p.thread, p.writer, p.first, p.count, octet_length(p.data), NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM t JOIN {pack} p ON p.thread = t.key

-- name: outline
-- What of a thread plans a prune, in few columns. Pending writes of a checkpoint that is not there have no `at`.
WITH {thread_row}, w AS (
    SELECT w.place, count(*) AS n, sum(octet_length(w.value))::int8 AS bytes
    FROM {write} w WHERE w.thread = (SELECT key FROM t)
    GROUP BY w.place
), c AS (
    SELECT
        c.place, c.ns, c.id, c.parent, c.sort_key, c.at, octet_length(c.header)::int8 AS size,
        CASE
            WHEN c.facets ? 'pinned' THEN c.facets -> 'pinned' NOT IN ('0', '""')
            WHEN c.facets <> jsonb_build_object() THEN false
        END AS pinned
    FROM {checkpoint} c WHERE c.thread = (SELECT key FROM t)
)
SELECT
    CASE WHEN c.at IS NULL THEN (
        SELECT s.ns FROM {write} s WHERE s.thread = (SELECT key FROM t) AND s.place = w.place LIMIT 1
    ) ELSE c.ns END,
    CASE WHEN c.at IS NULL THEN (
        SELECT s.checkpoint FROM {write} s WHERE s.thread = (SELECT key FROM t) AND s.place = w.place LIMIT 1
    ) ELSE c.id END,
    c.parent, c.sort_key, c.at, c.size, c.pinned, w.n, w.bytes
FROM c FULL JOIN w USING (place)

-- name: outline_packs
-- Where the packs of a thread lie, and their bytes.
WITH {thread_row}
SELECT p.writer, p.first, p.count::int8, octet_length(p.data)::int8 FROM t JOIN {pack} p ON p.thread = t.key

-- name: outline_head
-- Generation and state of a thread.
SELECT t.generation, {token} FROM {thread} t WHERE hash = %(thread)s::bytea

-- name: rows
-- Checkpoints by their places, with their pending writes.
WITH {thread_row}, wanted AS MATERIALIZED (
    SELECT t.key AS thread, t.generation, u.place FROM t, unnest(%(places)s::bytea[]) AS u (place)
)
SELECT
    1::int2 AS kind, 0::int8 AS ref, c.thread AS a, wanted.generation AS b, 0::int8 AS c, c.at, c.ns AS t1, c.id AS t2,
    c.parent AS t3, {key} AS t4, c.facets::text AS t5, c.spans[:] AS spans, c.header AS data
FROM wanted JOIN {checkpoint} c USING (thread, place)
UNION ALL
SELECT 2, 0, w.idx, NULL, NULL, NULL, w.task, w.path, w.channel, w.ns, w.checkpoint, w.spans[:], w.value
FROM wanted JOIN {write} w USING (thread, place)

-- name: lock
-- Keep every writer of a thread out until the transaction ends.
SELECT key, generation FROM {thread} WHERE hash = %(thread)s::bytea FOR UPDATE

-- name: drop_begin
-- Give the thread its new generation, if it is still as charted, or has it already: then this is a repetition.
UPDATE {thread} t SET generation = %(fresh)s::int8
WHERE hash = %(thread)s::bytea AND (generation = %(fresh)s::int8 OR {token} = %(token)s::text)
RETURNING key

-- part: dropping
t AS MATERIALIZED (
    SELECT key FROM {thread} WHERE hash = %(thread)s::bytea AND generation = %(fresh)s::int8
)

-- name: drop
-- Delete checkpoints with their writes, and packs; give kept checkpoints other parents. Answers by how much that changes
-- the numbers of the state.
WITH {dropping}, gone AS (
    DELETE FROM {checkpoint} c USING t WHERE c.thread = t.key AND c.place = ANY (%(places)s::bytea[]) RETURNING stamp
), unwritten AS (
    DELETE FROM {write} w USING t WHERE w.thread = t.key AND w.place = ANY (%(places)s::bytea[]) RETURNING stamp
), moved AS (
    UPDATE {checkpoint} c SET parent = u.parent
    FROM t, unnest(%(children)s::bytea[], %(parents)s::text[]) AS u (place, parent)
    WHERE c.thread = t.key AND c.place = u.place
), unpacked AS (
    DELETE FROM {pack} p
    USING t, unnest(%(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[]) AS u (writer, first, count)
    WHERE p.thread = t.key AND p.writer = u.writer AND p.first = u.first AND p.count = u.count
)
SELECT c.n, c.stamps, w.n, w.stamps
FROM (SELECT count(*) AS n, coalesce(sum(stamp), 0)::text AS stamps FROM gone) AS c,
    (SELECT count(*) AS n, coalesce(sum(stamp), 0)::text AS stamps FROM unwritten) AS w

-- name: drop_repacked
-- Store packs in the place of those that went.
WITH {dropping}
INSERT INTO {pack} (thread, writer, first, count, data)
SELECT t.key, p.*
FROM t, unnest(%(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[], %(data)s::bytea[]) AS p
ON CONFLICT (thread, writer, first) DO NOTHING

-- name: drop_end
-- Where neither checkpoints nor writes are left, nothing is.
WITH {dropping}, bare AS MATERIALIZED (
    SELECT key FROM t
    WHERE NOT EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key)
        AND NOT EXISTS (SELECT FROM {write} WHERE thread = t.key)
), unpacked AS (
    DELETE FROM {pack} p USING bare WHERE p.thread = bare.key
)
UPDATE {thread} AS thread SET created_at = NULL FROM bare WHERE thread.key = bare.key

-- name: delete_thread
-- Delete everything of a thread but its row, which remembers the newest %(most)s ids that it had.
WITH t AS MATERIALIZED (
    SELECT
        key, CASE WHEN {forgotten} THEN NULL ELSE tombstone END AS tombstone,
        CASE WHEN {forgotten} THEN '' ELSE floor END AS floor
    FROM {thread} t
    WHERE hash = %(thread)s::bytea AND (
        EXISTS (SELECT FROM {checkpoint} WHERE thread = t.key) OR EXISTS (SELECT FROM {write} WHERE thread = t.key)
    ) AND {settled}
), ids AS MATERIALIZED (
    SELECT c.id FROM t JOIN {checkpoint} c ON c.thread = t.key
    UNION
    SELECT w.checkpoint FROM t JOIN {write} w ON w.thread = t.key
    UNION
    SELECT unnest(t.tombstone) FROM t
), kept AS MATERIALIZED (
    SELECT id FROM ids ORDER BY id COLLATE "C" DESC LIMIT %(most)s::int8
), gone AS (
    DELETE FROM {checkpoint} c USING t WHERE c.thread = t.key
), unwritten AS (
    DELETE FROM {write} w USING t WHERE w.thread = t.key
), unpacked AS (
    DELETE FROM {pack} p USING t WHERE p.thread = t.key
)
UPDATE {thread} AS thread SET
    generation = %(fresh)s::int8,
    created_at = NULL,
    deleted_at = {now},
    tombstone = ARRAY(SELECT id FROM kept ORDER BY id COLLATE "C"),
    floor = CASE
        WHEN (SELECT count(*) FROM ids) > %(most)s::int8 THEN (SELECT min(id COLLATE "C") FROM kept)
        ELSE t.floor
    END
FROM t
WHERE thread.key = t.key

-- name: forget
-- Take away some of the tombstones that count no more.
UPDATE {thread} SET tombstone = NULL, floor = '', deleted_at = NULL
WHERE key IN (
    SELECT key FROM {thread} WHERE tombstone IS NOT NULL AND deleted_at <= {now} - 604800
    ORDER BY deleted_at LIMIT 8 FOR UPDATE SKIP LOCKED
) AND {forgotten}

-- part: exported
-- What every part of an export says: as which state of the thread it was read, and (in c) how much there is in all.
WITH {thread_row}
SELECT
    0::int2 AS kind, 0::int8 AS ref, t.key AS a, t.generation AS b, n.checkpoints + n.writes + n.packs AS c,
    NULL::float8 AS at, {token} AS t1, NULL::text AS t2, NULL::text AS t3, NULL::text AS t4, NULL::text AS t5,
    NULL::int8[] AS spans, NULL::bytea AS data
FROM t CROSS JOIN LATERAL (
    SELECT
        (SELECT count(*) FROM {checkpoint} WHERE thread = t.key) AS checkpoints,
        (SELECT count(*) FROM {write} WHERE thread = t.key) AS writes,
        (SELECT count(*) FROM {pack} WHERE thread = t.key) AS packs
) AS n
WHERE n.checkpoints + n.writes > 0
UNION ALL

-- name: export_packs
-- Packs of a thread.
{exported}
(
    SELECT 3, p.thread, p.writer, p.first, p.count, NULL, NULL, NULL, NULL, NULL, NULL, NULL, p.data
    FROM t JOIN {pack} p ON p.thread = t.key
    WHERE (p.writer, p.first) > (%(after_writer)s::int8, %(after_first)s::int8)
    ORDER BY p.writer, p.first
    LIMIT %(limit)s::int8
)

-- name: export_writes
-- Pending writes of a thread.
{exported}
(
    SELECT 2, 0, w.idx, NULL, NULL, NULL, w.task, w.path, w.channel, w.ns, w.checkpoint, w.spans, w.value
    FROM t JOIN {write} w ON w.thread = t.key
    WHERE (w.place, w.slot, w.idx) > (%(after_place)s::bytea, %(after_slot)s::bytea, %(after_idx)s::int8)
    ORDER BY w.place, w.slot, w.idx
    LIMIT %(limit)s::int8
)

-- name: export_rows
-- Checkpoints of a thread, oldest first.
{exported}
(
    SELECT 1, 0, c.thread, t.generation, NULL, c.at, c.ns, c.id, c.parent, {key}, c.facets::text, c.spans, c.header
    FROM t JOIN {checkpoint} c ON c.thread = t.key
    WHERE ({key}, c.ns) > (%(after_key)s::text, %(after_ns)s::text) OR %(after_key)s::text IS NULL
    ORDER BY {key}, c.ns
    LIMIT %(limit)s::int8
)

-- part: loading
-- The packs, writes and checkpoints of a batch.
packed AS (
    INSERT INTO {pack} (thread, writer, first, count, data)
    SELECT t.key, p.*
    FROM t, unnest(%(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[], %(data)s::bytea[]) AS p
    ON CONFLICT (thread, writer, first) DO NOTHING
), written AS (
    INSERT INTO {write} (thread, stamp, at, idx, place, slot, ns, checkpoint, task, path, channel, spans, value)
    SELECT t.key, %(stamp)s::int8, {now}, u.idx, u.place, u.slot, u.ns, u.checkpoint, u.task, u.path, u.channel,
        u.spans::int8[], u.value
    FROM t, unnest(
        %(idxs)s::int8[], %(write_places)s::bytea[], %(slots)s::bytea[], %(write_spaces)s::text[],
        %(write_ids)s::text[], %(tasks)s::text[], %(paths)s::text[], %(channels)s::text[], %(write_spans)s::text[],
        %(values)s::bytea[]
    ) AS u (idx, place, slot, ns, checkpoint, task, path, channel, spans, value)
    ON CONFLICT (thread, place, slot, idx) DO UPDATE SET
        stamp = EXCLUDED.stamp, at = EXCLUDED.at, task = EXCLUDED.task, path = EXCLUDED.path,
        channel = EXCLUDED.channel, spans = EXCLUDED.spans, value = EXCLUDED.value
        WHERE EXCLUDED.idx < 0
), entered AS (
    INSERT INTO {checkpoint} (thread, stamp, at, put_at, place, ns, id, parent, sort_key, facets, spans, header)
    SELECT t.key, %(stamp)s::int8, u.at, {now}, u.place, u.ns, u.id, u.parent, nullif(u.key, u.id), u.facets::jsonb,
        u.spans::int8[], u.header
    FROM t, unnest(
        %(ats)s::float8[], %(places)s::bytea[], %(spaces)s::text[], %(ids)s::text[], %(parents)s::text[],
        %(keys)s::text[], %(facets)s::text[], %(spans)s::text[], %(headers)s::bytea[]
    ) AS u (at, place, ns, id, parent, key, facets, spans, header)
    ON CONFLICT (thread, place) DO UPDATE SET
        stamp = EXCLUDED.stamp, at = EXCLUDED.at, put_at = EXCLUDED.put_at, parent = EXCLUDED.parent,
        sort_key = EXCLUDED.sort_key, facets = EXCLUDED.facets, spans = EXCLUDED.spans, header = EXCLUDED.header
)

-- name: load
-- Take over a part of another thread as it is, and lift the tombstone.
WITH t AS (
    INSERT INTO {thread} AS thread (hash, id, generation, created_at)
    VALUES (%(thread)s::bytea, %(thread_id)s::text, %(fresh)s::int8, {now})
    ON CONFLICT (hash) DO UPDATE
        SET tombstone = NULL, floor = '', deleted_at = NULL, created_at = coalesce(thread.created_at, EXCLUDED.created_at)
    RETURNING key
), {loading}
SELECT key FROM t

-- name: rewrite_begin
-- Delete the writes of checkpoints that are to be rewritten.
WITH {dropping}
DELETE FROM {write} w USING t WHERE w.thread = t.key AND w.place = ANY (%(places)s::bytea[])

-- name: rewrite
-- Store checkpoints and their writes in the place of what was there.
WITH {dropping}, {loading}
SELECT key FROM t

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
