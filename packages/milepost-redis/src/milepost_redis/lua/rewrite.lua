-- Put checkpoints, with their pending writes, in the place of what is there; if nobody wrote since.
-- uses: _thread _rows _writes
-- ARGV: token, then any number of what load takes: packs, then checkpoints, then their writes

local head, trouble = open()
if trouble then
  return {trouble}
end
if not head or token(head) ~= ARGV[1] then
  return {'moved'}
end
local at = 2
while at <= #ARGV do
  local kind = ARGV[at]
  if kind == 'p' then
    keep_pack(head, ARGV[at + 1], ARGV[at + 2])
    at = at + 3
  elseif kind == 'r' then
    local ns, id, time, key, parent, rest = unpack(ARGV, at + 1, at + 6)
    forget_writes(head, ns .. '\0' .. id)
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
close(head)
return {'ok', token(head)}
