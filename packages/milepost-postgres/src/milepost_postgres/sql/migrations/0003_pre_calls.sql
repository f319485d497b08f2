-- The ledger's records. Those of global keys are of the thread whose id is empty.

CREATE TABLE {call} (
    thread bigint NOT NULL REFERENCES {thread} ON DELETE CASCADE,
    revision bigint NOT NULL DEFAULT 0,
    started double precision NOT NULL DEFAULT 0,
    until double precision NOT NULL DEFAULT 0,
    updated double precision NOT NULL DEFAULT 0,
    generation integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    -- The first half of the SHA-256 of key.
    hash bytea NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- Of a further key of a record: the hash of that record. The columns of a record are empty then.
    target bytea,
    state text COLLATE "C" NOT NULL DEFAULT '',
    stamp text COLLATE "C" NOT NULL DEFAULT '',
    owner text COLLATE "C" NOT NULL DEFAULT '',
    match text COLLATE "C" NOT NULL DEFAULT '',
    call bytea NOT NULL DEFAULT '',
    outcome bytea NOT NULL DEFAULT '',
    -- Entries, each after its length in four bytes.
    trail bytea NOT NULL DEFAULT '',
    PRIMARY KEY (thread, hash)
);

CREATE INDEX {call_order} ON {call} (thread, started) WHERE target IS NULL;
CREATE INDEX {call_match} ON {call} (thread, match) WHERE match <> '';
CREATE INDEX {call_alias} ON {call} (thread, target) WHERE target IS NOT NULL;
CREATE INDEX {call_unsettled} ON {call} (thread, started)
    WHERE state IN ('started', 'in_doubt', 'compensating', 'compensation_failed');
