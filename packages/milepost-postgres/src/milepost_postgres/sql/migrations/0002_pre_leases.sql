-- Who drives a thread. The row outlives what the thread holds, so a fence does not go back.

ALTER TABLE {thread}
    -- Of each owner greater than of any before; 0 when there was none.
    ADD COLUMN fence bigint NOT NULL DEFAULT 0,
    -- A name of one acquisition alone; '' when the lease was given back.
    ADD COLUMN owner text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN since double precision NOT NULL DEFAULT 0,
    ADD COLUMN expires double precision NOT NULL DEFAULT 0,
    -- How many owners in a row crashed or failed, and what the last of them said.
    ADD COLUMN tries integer NOT NULL DEFAULT 0,
    ADD COLUMN error text COLLATE "C" NOT NULL DEFAULT '';
