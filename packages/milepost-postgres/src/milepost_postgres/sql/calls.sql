-- The statements of the ledger. Locks are taken in one order: the thread's row (shared: claims do not wait for each other
-- there, but for a deletion and for the hand-over of a lease), then what is equal in other words, then the record.

-- part: unsettled
c.state IN ('started', 'in_doubt', 'compensating', 'compensation_failed')

-- part: call_here
here AS MATERIALIZED (
    SELECT key, tombstone, floor, fence, deleted_at FROM {thread} WHERE hash = %(thread)s::bytea FOR KEY SHARE
)

-- part: call_admitted
{call_here}, {refused}, admitted AS MATERIALIZED (
    SELECT key, now FROM here, (SELECT {now} AS now) AS clock WHERE {in_time} AND NOT EXISTS (SELECT FROM refused)
)

-- part: call_of
-- Whether c is the record of a key, or of one that is a further key of it.
c.thread = here.key AND c.target IS NULL AND c.hash = coalesce((
    SELECT a.target FROM {call} a WHERE a.thread = here.key AND a.hash = %(key)s::bytea
), %(key)s::bytea)

-- part: call_expected
(c.generation, c.attempt, c.state, c.revision) = (
    %(was_generation)s::int8, %(was_attempt)s::int8, %(was_state)s::text, %(was_revision)s::int8
)

-- part: call_kin
-- Whether c is equal in other words, and none that is known.
c.thread = here.key AND c.match = %(match)s::text AND c.match <> '' AND c.hash <> ALL (%(beside)s::bytea[])
    AND NOT EXISTS (
        SELECT FROM {call} a WHERE a.thread = c.thread AND a.target = c.hash AND a.hash = ANY (%(beside)s::bytea[])
    )

-- part: call_columns
c.key, c.generation::int8, c.attempt::int8, c.state, c.revision, c.stamp, c.owner, c.call, c.outcome, c.match, c.started,
    c.until, c.updated,
    ARRAY(SELECT a.key FROM {call} a WHERE a.thread = c.thread AND a.target = c.hash ORDER BY a.updated, a.key),
    c.trail

-- name: call_thread
-- Make the thread's row where it is not there, and have it stay.
INSERT INTO {thread} (hash, id, generation)
SELECT %(thread)s::bytea, %(thread_id)s::text, %(fresh)s::int8
WHERE NOT EXISTS (SELECT FROM {thread} WHERE hash = %(thread)s::bytea FOR KEY SHARE)
ON CONFLICT (hash) DO NOTHING

-- name: call_alike
-- Of calls that are equal in other words, one at a time may look whether there is another.
SELECT pg_advisory_xact_lock(hashtextextended(%(match)s::text, 0))

-- name: call_new
-- Make a record where there is none, and none that is equal in other words.
WITH {call_admitted}
INSERT INTO {call} (
    thread, hash, key, generation, attempt, state, revision, stamp, owner, call, outcome, match, started, until, updated,
    trail
)
SELECT
    here.key, %(key)s::bytea, %(key_text)s::text, %(generation)s::int8, %(attempt)s::int8, %(state)s::text, 1,
    %(stamp)s::text, %(owner)s::text, coalesce(%(call)s::bytea, ''), coalesce(%(outcome)s::bytea, ''),
    coalesce(%(match)s::text, ''), here.now, here.now + coalesce(%(lease)s::float8, 0), here.now, %(entry)s::bytea
FROM admitted AS here
WHERE NOT EXISTS (SELECT FROM {call} c WHERE {call_kin})
ON CONFLICT (thread, hash) DO NOTHING

-- name: call_hold
-- Keep a record as it is until the transaction ends.
WITH {call_here}
SELECT c.hash FROM here JOIN {call} c ON {call_of} FOR UPDATE OF c

-- name: call_alias
-- Give a record a further key, if it is as expected.
WITH {call_admitted}
INSERT INTO {call} (thread, hash, key, target, updated)
SELECT here.key, %(alias)s::bytea, %(alias_text)s::text, c.hash, here.now
FROM admitted AS here JOIN {call} c ON {call_of} AND {call_expected}
ON CONFLICT (thread, hash) DO NOTHING

-- name: call_change
-- Change a record, if it is as expected, and has the further key.
WITH {call_admitted}
UPDATE {call} c SET
    generation = %(generation)s::int8,
    attempt = %(attempt)s::int8,
    state = %(state)s::text,
    revision = c.revision + 1,
    stamp = %(stamp)s::text,
    owner = %(owner)s::text,
    call = coalesce(%(call)s::bytea, c.call),
    outcome = coalesce(%(outcome)s::bytea, c.outcome),
    match = coalesce(%(match)s::text, c.match),
    started = CASE WHEN c.generation = %(generation)s::int8 THEN c.started ELSE here.now END,
    until = CASE WHEN %(lease)s::float8 IS NULL THEN c.until ELSE here.now + %(lease)s::float8 END,
    updated = here.now,
    trail = c.trail || %(entry)s::bytea
FROM admitted AS here
WHERE {call_of} AND {call_expected} AND (
    %(alias)s::bytea IS NULL OR EXISTS (
        SELECT FROM {call} a WHERE a.thread = c.thread AND a.hash = %(alias)s::bytea AND a.target = c.hash
    )
)

-- name: call_found
-- A record as it is now: (time, greater fence, refused id, then the record).
WITH {call_here}, {refused}
SELECT {now}, {later}, (SELECT id FROM refused), {call_columns}
FROM (SELECT) AS one LEFT JOIN here ON true LEFT JOIN {call} c ON {call_of}

-- name: call_relatives
-- Records that are equal in other words, where there is none of the key itself.
WITH {call_here}
SELECT {call_columns}
FROM here JOIN {call} c ON {call_kin}
WHERE NOT EXISTS (SELECT FROM {call} s WHERE s.thread = here.key AND s.hash = %(key)s::bytea)
ORDER BY c.started, c.key

-- part: calls_asked
(%(states)s::text[] IS NULL OR c.state = ANY (%(states)s::text[]))
    AND (
        %(keys)s::bytea[] IS NULL OR c.hash = ANY (%(keys)s::bytea[]) OR c.hash IN (
            SELECT a.target FROM {call} a WHERE a.thread = t.key AND a.hash = ANY (%(keys)s::bytea[])
        )
    )

-- part: calls_after
(t.key, c.started, c.key) > (%(after_thread)s::int8, %(after_started)s::float8, %(after_key)s::text)

-- part: calls_page
ORDER BY t.key, c.started, c.key
LIMIT %(limit)s::int8

-- name: calls_of_thread
-- Records of a thread, by their start.
SELECT {now}, t.key, t.id, {call_columns}
FROM {thread} t JOIN {call} c ON c.thread = t.key AND c.target IS NULL
WHERE t.hash = %(thread)s::bytea AND {calls_asked} AND {calls_after}
{calls_page}

-- name: calls_of_all
-- Records of all threads.
SELECT {now}, t.key, t.id, {call_columns}
FROM {thread} t JOIN {call} c ON c.thread = t.key AND c.target IS NULL
WHERE {calls_asked} AND {calls_after}
{calls_page}

-- name: calls_within
-- Those of threads whose id has a prefix.
SELECT {now}, t.key, t.id, {call_columns}
FROM {thread} t JOIN {call} c ON c.thread = t.key AND c.target IS NULL
WHERE {within} AND {calls_asked} AND {calls_after}
{calls_page}

-- name: calls_of_tenant
-- Those of a tenant.
SELECT {now}, t.key, t.id, {call_columns}
FROM {thread} t JOIN {call} c ON c.thread = t.key AND c.target IS NULL
WHERE {within_tenant} AND {calls_asked} AND {calls_after}
{calls_page}

-- name: calls_unsettled
-- Those of all threads that are unsettled.
SELECT {now}, t.key, t.id, {call_columns}
FROM {thread} t JOIN {call} c ON c.thread = t.key AND c.target IS NULL
WHERE {unsettled} AND {calls_asked} AND {calls_after}
{calls_page}

-- name: clock
-- The store's time.
SELECT {now}

-- part: settled
-- Whether the thread t may be deleted.
(%(force)s::int8 = 1 OR NOT EXISTS (SELECT FROM {call} c WHERE c.thread = t.key AND {unsettled}))

-- name: delete_calls
-- Delete the records of a thread that are settled, unless others keep it from being deleted: how many these are.
WITH t AS MATERIALIZED (
    SELECT key FROM {thread} WHERE hash = %(thread)s::bytea
), gone AS (
    DELETE FROM {call} c USING t
    WHERE c.thread = t.key AND {settled} AND NOT EXISTS (
        SELECT FROM {call} u
        WHERE u.thread = t.key AND u.hash = coalesce(c.target, c.hash)
            AND u.state IN ('started', 'in_doubt', 'compensating', 'compensation_failed')
    )
)
SELECT count(*) FROM t JOIN {call} c ON c.thread = t.key AND {unsettled}

-- name: forget_calls
-- Remove records that are settled and still as they were listed, with their further keys.
WITH gone AS (
    DELETE FROM {call} c USING {thread} t, unnest(%(hashes)s::bytea[], %(revisions)s::int8[]) AS listed (hash, revision)
    WHERE t.hash = %(thread)s::bytea AND c.thread = t.key AND c.target IS NULL AND NOT ({unsettled})
        AND c.hash = listed.hash AND c.revision = listed.revision
    RETURNING c.thread, c.hash
)
DELETE FROM {call} a USING gone WHERE a.thread = gone.thread AND a.target = gone.hash

-- name: call_transaction
-- The transaction at hand, not a savepoint in it.
SELECT pg_current_xact_id()::text::int8

-- name: call_committed
-- Whether such a transaction was committed.
SELECT coalesce(pg_xact_status(%(transaction)s::int8::text::xid8) = 'committed', false)

-- name: load_calls
-- Take over records, and their further keys, where there are none.
WITH t AS MATERIALIZED (
    SELECT key FROM {thread} WHERE hash = %(thread)s::bytea
), named AS (
    INSERT INTO {call} (thread, hash, key, target, updated)
    SELECT t.key, a.hash, a.key, a.target, {now}
    FROM t, unnest(%(alias_hashes)s::bytea[], %(alias_keys)s::text[], %(alias_targets)s::bytea[])
        AS a (hash, key, target)
    ON CONFLICT (thread, hash) DO NOTHING
)
INSERT INTO {call} (
    thread, hash, key, generation, attempt, state, revision, stamp, owner, call, outcome, match, started, until, updated,
    trail
)
SELECT t.key, u.*
FROM t, unnest(
    %(hashes)s::bytea[], %(keys)s::text[], %(generations)s::int8[], %(attempts)s::int8[], %(states)s::text[],
    %(revisions)s::int8[], %(stamps)s::text[], %(owners)s::text[], %(calls)s::bytea[], %(outcomes)s::bytea[],
    %(matches)s::text[], %(starts)s::float8[], %(untils)s::float8[], %(updates)s::float8[], %(trails)s::bytea[]
) AS u
ON CONFLICT (thread, hash) DO NOTHING
