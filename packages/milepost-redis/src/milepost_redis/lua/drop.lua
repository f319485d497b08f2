-- Remove checkpoints with their writes, re-parent others, exchange packs, and raise the generation; if nobody wrote since.
-- uses: _thread _rows _writes
-- ARGV: token, fresh generation, numbers of checkpoints, children and packs; then the places of the checkpoints, place
--       and parent of each child, the members of the packs that go, and member and data of those that come

local head, trouble = open()
if trouble then
  return {trouble}
end
if head and head.generation == ARGV[2] then
  -- A repetition. Whether anybody wrote since is for the next step to find out.
  return {'ok', ARGV[2] .. struct.pack('>d', struct.unpack('>d', ARGV[1], 9) + 1), 0}
end
if not head or token(head) ~= ARGV[1] then
  return {'moved'}
end
local children = 6 + ARGV[3]
local packs = children + 2 * ARGV[4]
local repacked = packs + ARGV[5]
for at = 6, children - 1 do
  local place = ARGV[at]
  local ns, id = parts(place)
  leave(head, ns, id)
  forget_writes(head, place)
end
for at = children, packs - 1, 2 do
  local _, id = parts(ARGV[at])
  local value = call('HGET', DATA, 'r' .. ARGV[at])
  if value then
    local when, key, _, past = row_of(value, id)
    local new = row_value(when, key, id, ARGV[at + 1], string.sub(value, past))
    call('HSET', DATA, 'r' .. ARGV[at], new)
    head.bytes = head.bytes + #new - #value
  end
end
for at = packs, repacked - 1 do
  if call('ZREM', ORDER, ARGV[at]) == 1 then
    local field = string.sub(ARGV[at], 1, 17)
    head.bytes = head.bytes - call('HSTRLEN', DATA, field)
    call('HDEL', DATA, field)
    head.packs = head.packs - 1
  end
end
for at = repacked, #ARGV, 2 do
  keep_pack(head, ARGV[at], ARGV[at + 1])
end
if head.rows == 0 and head.writes == 0 then
  call('UNLINK', DATA, ORDER)
  if INDEX then
    call('ZREM', INDEX, head.thread)
  end
  return {'ok', '', 1}
end
head.generation = ARGV[2]
close(head)
return {'ok', token(head), 0}
