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
{there} AND NOT EXISTS (SELECT FROM refused)

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
-- Whether the thread is as its writer takes it to be.
(%(generation)s::int8 IS NULL OR generation = %(generation)s::int8) AND {in_time}

-- part: there_to_put
-- The same for a thread that is there, and for nothing that might be of its deleted past (the statement above decides
-- about that). Nearly every put is such a one, and a shorter statement is carried out faster.
admitted AS MATERIALIZED (
    SELECT key FROM locked
    WHERE {there} AND (
        tombstone IS NULL
        OR NOT tombstone && (%(named)s::text[] || %(id)s::text) AND floor <= ALL (%(named)s::text[])
    )
)

-- part: there_to_write
-- The same for pending writes.
admitted AS MATERIALIZED (
    SELECT key FROM locked
    WHERE {there} AND (tombstone IS NULL OR %(id)s::text <> ALL (tombstone) AND floor <= %(id)s::text)
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
WITH {locked_to_put}, {there_to_put}, {put_row}, {put_packs}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8 FROM locked

-- name: put_there_alone
-- The same for a checkpoint that needs nothing newly.
WITH {locked_to_put}, {there_to_put}, {put_row}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8 FROM locked

-- name: absorb
-- After a put, which holds the thread, and if it stored its checkpoint: put a pack in the place of those that lie in it. It
-- grows out of the first of them.
WITH t AS MATERIALIZED (
    SELECT t.key FROM {thread} t JOIN {checkpoint} c ON c.thread = t.key
    WHERE t.hash = %(thread)s::bytea AND c.place = %(place)s::bytea AND c.stamp = %(stamp)s::int8
), grown AS (
    UPDATE {pack} p SET count = %(past)s::int8 - p.first, data = %(merged)s::bytea
    FROM t
    WHERE p.thread = t.key AND p.writer = %(writer)s::int8 AND p.first = %(first)s::int8
        AND p.first + p.count < %(past)s::int8
    RETURNING p.thread
)
DELETE FROM {pack} p USING grown
WHERE p.thread = grown.thread AND p.writer = %(writer)s::int8 AND p.first > %(first)s::int8
    AND p.first + p.count <= %(past)s::int8

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
WITH {locked_to_write}, {there_to_write}, {write_rows}, {write_packs}
SELECT EXISTS (SELECT FROM admitted), generation, NULL::text, NULL::int8, (SELECT count(*) FROM stored) FROM locked

-- name: put_writes_there_alone
-- The same for writes that need nothing newly.
WITH {locked_to_write}, {there_to_write}, {write_rows}
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
    SELECT 0::int8 AS ref, c.thread, {row} FROM found JOIN {checkpoint} c USING (thread, place)
    UNION ALL
    SELECT chain.ref + 1, c.thread, {row}
    FROM chain JOIN {checkpoint} c
        ON c.thread = chain.thread
        AND c.place = substring(sha256(%(space)s::bytea || convert_to(chain.parent, 'UTF8')) FOR 16)
    WHERE chain.ref < %(limit)s::int8
), chosen AS MATERIALIZED (
    SELECT
        chain.ref, t.key AS thread, t.generation, chain.place, chain.ns, chain.id, chain.parent, chain.key, chain.at,
        chain.facets, chain.spans, chain.header
    FROM chain JOIN t ON t.key = chain.thread
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

-- name: fetch_all
-- The packs that overlap some spans, also such as reach into one from before a pack that does not. It looks at all packs of
-- their writers that begin before the spans end.
WITH {thread_row}, sources AS (
    SELECT key AS thread, %(spans)s::int8[] AS spans FROM t
), {wanted}
SELECT
    3::int2 AS kind, p.thread AS ref, p.writer AS a, p.first AS b, p.count::int8 AS c, NULL::float8 AS at,
    NULL::text AS t1, NULL::text AS t2, NULL::text AS t3, NULL::text AS t4, NULL::text AS t5, NULL::int8[] AS spans,
    p.data
FROM wanted JOIN {pack} p
    ON p.thread = wanted.thread AND p.writer = wanted.writer AND p.first < wanted.past AND p.first + p.count > wanted.first

-- name: fetch
-- The packs that overlap some spans.
WITH {thread_row}, sources AS (
    SELECT key AS thread, %(spans)s::int8[] AS spans FROM t
), {wanted}
{packs}
