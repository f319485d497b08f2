-- The statements that work on a thread as a whole: to prune, delete, copy and rewrite it.

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
        OR EXISTS (SELECT FROM {pack} WHERE thread = t.key)
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
    INSERT INTO {pack} AS pack (thread, writer, first, count, data)
    SELECT t.key, p.*
    FROM t, unnest(%(writers)s::int8[], %(firsts)s::int8[], %(counts)s::int8[], %(data)s::bytea[]) AS p
    -- One that holds more takes the place of what it begins with.
    ON CONFLICT (thread, writer, first) DO UPDATE SET count = EXCLUDED.count, data = EXCLUDED.data
        WHERE EXCLUDED.count > pack.count
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
-- Take over a part of another thread as it is, and lift the tombstone. The generation is new because packs have no part in
-- the token: a step that was planned before must not delete those that were there already.
WITH t AS (
    INSERT INTO {thread} AS thread (hash, id, generation, created_at)
    VALUES (%(thread)s::bytea, %(thread_id)s::text, %(fresh)s::int8, {now})
    ON CONFLICT (hash) DO UPDATE
        SET generation = EXCLUDED.generation, tombstone = NULL, floor = '', deleted_at = NULL,
            created_at = coalesce(thread.created_at, EXCLUDED.created_at)
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
