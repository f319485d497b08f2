-- When a thread was deleted: its tombstone does not count for ever.

ALTER TABLE {thread} ADD COLUMN deleted_at double precision;

UPDATE {thread} SET deleted_at = extract(epoch FROM now()) WHERE tombstone IS NOT NULL;

CREATE INDEX {thread_deleted} ON {thread} (deleted_at) WHERE tombstone IS NOT NULL;
