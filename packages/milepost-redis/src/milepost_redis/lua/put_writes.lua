-- Store pending writes of a checkpoint, row by row, also when the checkpoint is not there.
-- uses: _thread _lease _rows _writes _dead
-- ARGV: ttl, generation or '', fresh generation, thread, ns, id, 1 if a thread that waits is not to expire, fence or '',
--       then for each row: slot, flag, 1 if it is special, value, and member and data of its pack or '' twice

local ttl, generation, fresh, thread, ns, id, exempts, fence = unpack(ARGV, 1, 8)
local head, trouble = open()
if trouble then
  return {trouble}
end
local found = later(fence)
if found then
  return {'late', found}
end
local dead = first_dead(ns, {id})
if dead then
  return {'dead', dead}
end
local current = head and head.generation or NOWHERE
if generation ~= '' and generation ~= current then
  return {'stale', current}
end
head = head or begin(thread, fresh)
local place = ns .. '\0' .. id
local before = call('HGET', DATA, 'd' .. place) or ''
local directory = before
local accepted = {}
for at = 9, #ARGV, 6 do
  local slot, flag, special, value, member, data = unpack(ARGV, at, at + 5)
  local taken
  taken, directory = keep_write(head, place, directory, slot, flag, special == '1', value, member, data)
  accepted[#accepted + 1] = taken and 1 or 0
  if flag == '!' and exempts == '1' then
    head.waits = 1
  end
end
keep_directory(place, before, directory)
close(head)
if head.waits == 1 then
  persist()
else
  expire(ttl)
end
return {'ok', head.generation, made(head), head.listed, accepted}
