-- What of the server's settings a store depends on: its version, and whether it may evict keys and keeps a log.
-- KEYS: any one, so that a cluster knows where to send this

local info = redis.call('INFO')
return {
  string.match(info, 'redis_version:(%S+)') or '',
  string.match(info, 'maxmemory:(%d+)') or '',
  string.match(info, 'maxmemory_policy:(%S+)') or '',
  string.match(info, 'aof_enabled:(%d)') or '',
}
