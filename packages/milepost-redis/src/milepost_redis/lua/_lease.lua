-- The lease of a thread, in a key that outlives what the thread holds: see `milepost.fences`.
-- LEASE is a hash with the fields f (fence), o (owner), s (since), e (expires), t (tries) and r (error). Fences are
-- microseconds: below 2^53, so that a number of Lua holds them.

-- The fence of the thread where it is greater than `fence`, or nil.
local function later(fence)
  local held = fence ~= '' and call('HGET', LEASE, 'f')
  return held and tonumber(held) > tonumber(fence) and held or nil
end

local function lease()
  local held = call('HMGET', LEASE, 'o', 'f', 's', 'e', 't', 'r')
  return {held[1] or '', held[2] or '0', held[3] or '0', held[4] or '0', held[5] or '0', held[6] or ''}
end

local function seconds(at)
  return string.format('%.6f', at)
end

-- `life` is how many milliseconds the key stays after the lease is over.
local function keep_lease(expires, life, ...)
  call('HSET', LEASE, 'e', seconds(expires), ...)
  call('PEXPIREAT', LEASE, string.format('%.0f', expires * 1000 + life))
end
