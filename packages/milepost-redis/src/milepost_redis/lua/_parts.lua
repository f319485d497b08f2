-- How the parts of a batch are taken over, which `load` and `rewrite` are given.

-- ARGV from `at` on: any number of
--   r, ns, id, time of 8 bytes, key, parent, rest of the row
--   w, ns, id, slot, flag, 1 if it is special, value
--   p, member, data
-- With `afresh`, the pending writes that a checkpoint has are gone when it is entered.
local function take_parts(head, at, afresh)
  while at <= #ARGV do
    local kind = ARGV[at]
    if kind == 'p' then
      keep_pack(head, ARGV[at + 1], ARGV[at + 2])
      at = at + 3
    elseif kind == 'r' then
      local ns, id, time, key, parent, rest = unpack(ARGV, at + 1, at + 6)
      if afresh then
        forget_writes(head, ns .. '\0' .. id)
      end
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
end
