-- Take over a part of another thread as it is. Clears the tombstone.
-- uses: _thread _rows _writes
-- ARGV: ttl, fresh generation, thread, then any number of
--       r, ns, id, time of 8 bytes, key, parent, rest of the row
--       w, ns, id, slot, flag, 1 if it is special, value
--       p, member, data

local ttl, fresh, thread = unpack(ARGV, 1, 3)
local head, trouble = open()
if trouble then
  return {trouble}
end
head = head or begin(thread, fresh)
local at = 4
while at <= #ARGV do
  local kind = ARGV[at]
  if kind == 'p' then
    keep_pack(head, ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  elseif kind == 'r' then
    local ns, id, time, key, parent, rest = unpack(ARGV, at + 1, at + 6)
    leave(head, ns, id)
    enter(head, ns, id, struct.unpack('>d', time), key, parent, rest)
    at = at + 7
  else
    local ns, id, slot, flag, special, value = unpack(ARGV, at + 1, at + 6)
    local place = ns .. '\0' .. id
    local before = call('HGET', DATA, 'd' .. place) or ''
    local _, directory = keep_write(head, place, before, slot, flag, special == '1', value, '', '')
    keep_directory(place, before, directory)
    at = at + 7
  end
end
call('DEL', TOMB)
close(head)
expire(ttl)
return {'ok', head.generation, made(head), head.listed}
