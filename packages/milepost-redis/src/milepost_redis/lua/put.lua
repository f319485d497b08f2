-- Store a checkpoint and the packs it newly needs; or say that its generation is over, or its past deleted.
-- uses: _thread _lease _reading _rows _dead
-- ARGV: ttl, generation or '', fresh generation, thread, ns, id, parent, rest of the row, fence or '', ids one of which must be the
--       latest, each in NUL, or '', member and data of a pack that takes the place of those that lie in it and the number of the
--       item behind it, or '' three times, number of ids that it descends from, these, then member and data of each pack

local ttl, generation, fresh, thread, ns, id, parent, rest, fence, heads = unpack(ARGV, 1, 10)
local head, trouble = open()
if trouble then
  return {trouble}
end
local found = later(fence)
if found then
  return {'late', found}
end
local packs = 15 + ARGV[14]
local dead = first_dead(ns, {unpack(ARGV, 15, packs - 1)}, id)
if dead then
  return {'dead', dead}
end
local current = head and head.generation or NOWHERE
if generation ~= '' and generation ~= current then
  return {'stale', current}
end
local field = 'r' .. ns .. '\0' .. id
local old = call('HGET', DATA, field)
local member = heads ~= '' and not old and latest(ns)
if member then
  local _, _, newest = named(member)
  if not string.find(heads, '\0' .. newest .. '\0', 1, true) then
    return {'ahead', newest}
  end
end
head = head or begin(thread, fresh)
for at = packs, #ARGV, 2 do
  keep_pack(head, ARGV[at], ARGV[at + 1])
end
if old then
  local at, key = row_of(old, id)
  local value = row_value(at, key, id, parent, rest)
  call('HSET', DATA, field, value)
  head.bytes = head.bytes + #value - #old
else
  local above
  if parent ~= '' then
    above = string.sub(parent, 2)
    local value = call('HGET', DATA, 'r' .. ns .. '\0' .. above)
    if value then
      local _, key = row_of(value, above)
      above = key
    end
  end
  enter(head, ns, id, clock(), sort_key(id, above), parent, rest)
end
if ARGV[11] ~= '' then
  absorb(head, ARGV[11], ARGV[12], ARGV[13])
end
head.waits = 0
close(head)
expire(ttl)
return {'ok', head.generation, made(head), head.listed}
