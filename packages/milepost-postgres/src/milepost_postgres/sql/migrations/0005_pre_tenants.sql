-- The threads of a tenant: their ids begin with its name between two separators. (A name has at most 256 characters.)

CREATE INDEX {thread_tenant} ON {thread} (left(split_part(id, chr(29), 2), 256), key) WHERE left(id, 1) = chr(29);
