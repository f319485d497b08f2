-- The rule of the tombstone: see `milepost.store.Tombstone.refuses`.
-- TOMB is a sorted set with members of score 0: i and an id, and f and the floor, if there is one.

local function stored(ns, id)
  if call('HEXISTS', DATA, 'r' .. ns .. '\0' .. id) == 1 or #call(
    'ZRANGEBYLEX', ORDER, '[i' .. id .. '\0', '(i' .. id .. '\1', 'LIMIT', 0, 1) > 0 then
    return true
  end
  for _, member in ipairs(call('ZRANGEBYLEX', ORDER, '[k' .. id .. '\0', '(k' .. id .. '\1')) do
    if string.byte(member, -1) == 0 then
      return true
    end
  end
  return false
end

-- The first of `ids` that belongs to the thread's deleted past, or `own`, if a put of it would bring that back; or nil.
local function first_dead(ns, ids, own)
  if call('EXISTS', TOMB) == 0 then
    return nil
  end
  local floor = call('ZRANGEBYLEX', TOMB, '[f', '(g', 'LIMIT', 0, 1)[1]
  for _, id in ipairs(ids) do
    if (call('ZSCORE', TOMB, 'i' .. id) or floor and less(id, string.sub(floor, 2))) and not stored(ns, id) then
      return id
    end
  end
  return own and call('ZSCORE', TOMB, 'i' .. own) and not stored(ns, own) and own or nil
end
