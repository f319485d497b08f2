-- The ledger's records of a thread.
--
-- CALLS is a hash. Its fields, by their first letter:
--   c key                         a record: its plain fields, call and outcome
--   t key                         its trail: entries, each after its length
--   a alias                       the key of the record that has this further key
--   m match                       keys of records that are equal in other words, each after its length
--   u                             how many records are unsettled
-- STARTS is a sorted set: keys by the time of their start. LEDGER is the index of threads that have records.

local CALLS, STARTS, LEDGER = KEYS[5], KEYS[6], KEYS[7]
local RECORD = '>I4I4I4dddI4c0I4c0I4c0I4c0I4c0I4c0I4c0'
local UNSETTLED = {started = 1, in_doubt = 1, compensating = 1, compensation_failed = 1}

local function framed(text)
  return struct.pack('>I4c0', #text, text)
end

local function frames(text)
  local found, at = {}, 1
  while at <= #text do
    local one, past = struct.unpack('>I4c0', text, at)
    found[#found + 1] = one
    at = past
  end
  return found
end

-- The key of the record that a key or a further key names.
local function resolved(key)
  return call('HGET', CALLS, 'a' .. key) or key
end

local function opened(value)
  local r = {}
  r.generation, r.attempt, r.revision, r.started, r.ends, r.updated, r.state, r.stamp, r.owner, r.match, r.aliases, r.call,
    r.outcome = struct.unpack(RECORD, value)
  return r
end

local function sealed(r)
  return struct.pack(RECORD, r.generation, r.attempt, r.revision, r.started, r.ends, r.updated, #r.state, r.state,
    #r.stamp, r.stamp, #r.owner, r.owner, #r.match, r.match, #r.aliases, r.aliases, #r.call, r.call,
    #r.outcome, r.outcome)
end

-- A record has this `match` no more.
local function leave_match(match, key)
  local left = ''
  for _, one in ipairs(frames(call('HGET', CALLS, 'm' .. match) or '')) do
    left = one == key and left or left .. framed(one)
  end
  if left == '' then
    call('HDEL', CALLS, 'm' .. match)
  else
    call('HSET', CALLS, 'm' .. match, left)
  end
end

-- Keep `r` as the record of `key`, in the place of `before` or nil; `trail` is the whole of it.
local function keep_call(key, r, before, trail)
  call('HSET', CALLS, 'c' .. key, sealed(r), 't' .. key, trail)
  local more = (UNSETTLED[r.state] or 0) - (before and UNSETTLED[before.state] or 0)
  if more ~= 0 then
    call('HINCRBY', CALLS, 'u', more)
  end
  if not before or before.started ~= r.started then
    call('ZADD', STARTS, string.format('%.17g', r.started), key)
  end
  local old = before and before.match or ''
  if old ~= r.match then
    if old ~= '' then
      leave_match(old, key)
    end
    if r.match ~= '' then
      call('HSET', CALLS, 'm' .. r.match, (call('HGET', CALLS, 'm' .. r.match) or '') .. framed(key))
    end
  end
  for _, alias in ipairs(frames(r.aliases)) do
    call('HSET', CALLS, 'a' .. alias, key)
  end
end

-- A record as it is told: key, value, trail.
local function told(key)
  return {key, call('HGET', CALLS, 'c' .. key), call('HGET', CALLS, 't' .. key)}
end
