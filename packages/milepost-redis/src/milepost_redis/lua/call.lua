-- Claim or settle a call: see `milepost.callstore.CallStore`.
-- uses: _thread _dead _lease _calls
-- ARGV: fence or '', 1 for a claim, thread, key, what is expected as generation, attempt, state and revision ('' four times:
--       nothing), generation, attempt, state, stamp, owner, seconds of the lease or '', 1 and call or '' twice, the same for
--       outcome and match, entry with its length or '', alias or '', how many checkpoint ids and these, then keys that are
--       known

local fence, claims, thread, key, was_generation, was_attempt, was_state, was_revision = unpack(ARGV, 1, 8)
local generation, attempt, state, stamp, owner, lease_ends = unpack(ARGV, 9, 14)
local has_call, given_call, has_outcome, given_outcome, has_match, given_match, entry, alias, count = unpack(ARGV, 15, 23)
local found = later(fence)
if found then
  return {'late', found}
end
local ids, known = {}, {}
for at = 24, 23 + count do
  ids[#ids + 1] = ARGV[at]
end
for at = 24 + count, #ARGV do
  known[ARGV[at]] = true
end
local dead = first_dead('', ids)
if dead then
  return {'dead', dead}
end
local now = clock()
local time_told = struct.pack('>d', now)
key = resolved(key)
local value = call('HGET', CALLS, 'c' .. key)
if not value then
  if claims ~= '1' or was_state ~= '' then
    return {'none', time_told}
  end
  local kin = {}
  for _, one in ipairs(given_match ~= '' and frames(call('HGET', CALLS, 'm' .. given_match) or '') or {}) do
    local relative = opened(call('HGET', CALLS, 'c' .. one))
    local explained = known[one]
    for _, name in ipairs(frames(relative.aliases)) do
      explained = explained or known[name]
    end
    if not explained then
      kin[#kin + 1] = told(one)
    end
  end
  if #kin > 0 then
    return {'kin', time_told, kin}
  end
  local first = call('EXISTS', CALLS) == 0
  keep_call(key, {
    generation = generation, attempt = attempt, revision = 1, started = now, ends = now + (tonumber(lease_ends) or 0),
    updated = now, state = state, stamp = stamp, owner = owner, match = given_match, aliases = '', call = given_call,
    outcome = given_outcome,
  }, nil, entry)
  if first and LEDGER then
    call('ZADD', LEDGER, 0, thread)
  end
  return {'ok', time_told, told(key), first and 1 or 0}
end
local r = opened(value)
local fits = was_state ~= '' and r.generation == tonumber(was_generation) and r.attempt == tonumber(was_attempt)
  and r.state == was_state and r.revision == tonumber(was_revision)
if fits and alias ~= '' then
  fits = call('HEXISTS', CALLS, 'a' .. alias) == 0 and call('HEXISTS', CALLS, 'c' .. alias) == 0
end
if r.stamp ~= stamp and fits then
  local before = opened(value)
  r.revision = r.revision + 1
  if r.generation ~= tonumber(generation) then
    r.started = now
  end
  r.generation, r.attempt, r.state, r.stamp, r.owner, r.updated = generation, attempt, state, stamp, owner, now
  if lease_ends ~= '' then
    r.ends = now + lease_ends
  end
  if has_call == '1' then
    r.call = given_call
  end
  if has_outcome == '1' then
    r.outcome = given_outcome
  end
  if has_match == '1' then
    r.match = given_match
  end
  if alias ~= '' then
    r.aliases = r.aliases .. framed(alias)
  end
  keep_call(key, r, before, call('HGET', CALLS, 't' .. key) .. entry)
end
return {'ok', time_told, told(key), 0}
