-- How checkpoints are entered and left, and packs kept.

-- See `milepost.store.sort_key`.
local function sort_key(id, above)
  if not above or less(above, id) then
    return id
  end
  local cut = string.find(above, '\1', 1, true)
  if cut then
    local short = string.sub(above, 1, cut) .. id
    if less(above, short) then
      return short
    end
  end
  return above .. '\1' .. id
end

-- at, key, parent ('' or '=' and the id), and where the rest begins.
local function row_of(value, id)
  local at, key, parent, past = struct.unpack('>dI4c0I4c0', value)
  return at, key == '' and id or key, parent, past
end

local function row_value(at, key, id, parent, rest)
  if key == id then
    key = ''
  end
  return struct.pack('>dI4c0I4c0', at, #key, key, #parent, parent) .. rest
end

local function enter(head, ns, id, at, key, parent, rest)
  local value = row_value(at, key, id, parent, rest)
  local suffix = key == id and '' or id
  call('HSET', DATA, 'r' .. ns .. '\0' .. id, value)
  call('ZADD', ORDER, 0, 'n' .. ns .. '\0' .. key .. '\0' .. suffix, 0, 'k' .. key .. '\0' .. ns .. '\0' .. suffix)
  if suffix ~= '' then
    call('ZADD', ORDER, 0, 'i' .. id .. '\0' .. ns)
  end
  call('ZREM', ORDER, 'q' .. ns .. '\0' .. id)
  head.rows = head.rows + 1
  head.bytes = head.bytes + #value
end

-- Takes a checkpoint out, but not its pending writes.
local function leave(head, ns, id)
  local field = 'r' .. ns .. '\0' .. id
  local value = call('HGET', DATA, field)
  if value then
    local _, key = row_of(value, id)
    local suffix = key == id and '' or id
    call('HDEL', DATA, field)
    call('ZREM', ORDER, 'n' .. ns .. '\0' .. key .. '\0' .. suffix, 'k' .. key .. '\0' .. ns .. '\0' .. suffix,
      'i' .. id .. '\0' .. ns)
    head.rows = head.rows - 1
    head.bytes = head.bytes - #value
  end
end

-- Stores a pack, unless there is one at its place that is as long.
local function keep_pack(head, member, data)
  local field = string.sub(member, 1, 17)
  if call('HSETNX', DATA, field, data) == 0 then
    local held = call('ZREVRANGEBYLEX', ORDER, past(field), from(field), 'LIMIT', 0, 1)[1]
    if held and not less(held, member) then
      return
    end
    head.bytes = head.bytes - call('HSTRLEN', DATA, field)
    call('HSET', DATA, field, data)
    if held then
      call('ZREM', ORDER, held)
      head.packs = head.packs - 1
    end
  end
  call('ZADD', ORDER, 0, member)
  head.packs = head.packs + 1
  head.bytes = head.bytes + #data
end

-- Stores a pack in the place of those that lie in it; `past` is the number of the item behind it.
local function absorb(head, member, data, past)
  local field = string.sub(member, 1, 17)
  local stem = string.sub(member, 1, 9)
  local members, names = {}, {}
  for _, held in ipairs(call('ZRANGEBYLEX', ORDER, '[' .. field, '(' .. stem .. past)) do
    if not reaches(held, past) then
      members[#members + 1] = held
      names[#names + 1] = string.sub(held, 1, 17)
      head.bytes = head.bytes - call('HSTRLEN', DATA, names[#names])
    end
  end
  if members[1] then
    call('HDEL', DATA, unpack(names))
    call('ZREM', ORDER, unpack(members))
    head.packs = head.packs - #members
  end
  keep_pack(head, member, data)
end
