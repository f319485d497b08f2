-- The tables. Everything that belongs to a thread has its key first, and goes with it.

CREATE TABLE {thread} (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Renewed by whatever deletes items; never comes back.
    generation bigint NOT NULL,
    -- NULL while there is nothing of the thread but this row.
    created_at double precision,
    -- The first half of the SHA-256 of id, which may be too long for an index.
    hash bytea NOT NULL UNIQUE,
    id text COLLATE "C" NOT NULL,
    -- What a deletion leaves behind: ids of checkpoints that were, and the id below which every unknown one was.
    tombstone text[] COLLATE "C",
    floor text COLLATE "C" NOT NULL DEFAULT ''
);

CREATE TABLE {checkpoint} (
    thread bigint NOT NULL REFERENCES {thread} ON DELETE CASCADE,
    -- A number of the put that wrote the row.
    stamp bigint NOT NULL,
    at double precision NOT NULL,
    put_at double precision NOT NULL,
    -- The first half of SHA-256(SHA-256(ns) || id).
    place bytea NOT NULL,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    parent text COLLATE "C",
    -- NULL where it is the id.
    sort_key text COLLATE "C",
    facets jsonb NOT NULL,
    -- (writer, first, count) after (writer, first, count).
    spans bigint[] NOT NULL,
    header bytea NOT NULL,
    PRIMARY KEY (thread, place)
);

-- Beginnings, because what is indexed must be short; queries order by the whole after the beginning.
CREATE INDEX {checkpoint_latest} ON {checkpoint} (thread, left(ns, 200), left(coalesce(sort_key, id), 200));
CREATE INDEX {checkpoint_order} ON {checkpoint} (left(coalesce(sort_key, id), 200));

CREATE TABLE {write} (
    thread bigint NOT NULL REFERENCES {thread} ON DELETE CASCADE,
    stamp bigint NOT NULL,
    at double precision NOT NULL,
    idx integer NOT NULL,
    -- As that of the checkpoint, which need not be there.
    place bytea NOT NULL,
    -- The first half of the SHA-256 of task.
    slot bytea NOT NULL,
    ns text COLLATE "C" NOT NULL,
    checkpoint text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    channel text COLLATE "C" NOT NULL,
    spans bigint[] NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (thread, place, slot, idx)
);

CREATE INDEX {write_waiting} ON {write} (thread, place) WHERE channel = '__interrupt__';

CREATE TABLE {pack} (
    thread bigint NOT NULL REFERENCES {thread} ON DELETE CASCADE,
    writer bigint NOT NULL,
    first bigint NOT NULL,
    count integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (thread, writer, first)
);

-- Rows that fit into a page stay whole: what is moved out costs a second look-up for each row that is read.
ALTER TABLE {checkpoint} ALTER COLUMN header SET STORAGE MAIN;
ALTER TABLE {pack} ALTER COLUMN data SET STORAGE MAIN;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE {checkpoint} ALTER COLUMN header SET COMPRESSION lz4;
        ALTER TABLE {pack} ALTER COLUMN data SET COMPRESSION lz4;
    END IF;
END
$$;
