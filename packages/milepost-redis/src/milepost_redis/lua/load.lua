-- Take over a part of another thread as it is. Clears the tombstone.
-- uses: _thread _rows _writes _parts
-- ARGV: ttl, fresh generation, thread, then parts

local ttl, fresh, thread = unpack(ARGV, 1, 3)
local head, trouble = open()
if trouble then
  return {trouble}
end
head = head or begin(thread, fresh)
take_parts(head, 4, false)
call('DEL', TOMB)
close(head)
expire(ttl)
return {'ok', head.generation, made(head), head.listed}
