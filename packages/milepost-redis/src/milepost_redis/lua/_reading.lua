-- How a checkpoint is read: its writes, and the packs that it and they refer to.

local CHUNK = 256
local PACKS, BYTES = 2048, 8388608

-- Fields by their names, a bounded number at a time: what `unpack` takes is limited.
local function fields(names, first, last)
  return call('HMGET', DATA, unpack(names, first, last))
end

-- Appends the pending writes of a checkpoint to `found`: all, or those to the channels that `wanted` has as keys.
local function writes_of(place, found, wanted)
  local directory = call('HGET', DATA, 'd' .. place)
  if not directory then
    return
  end
  local names = {}
  for at = 1, #directory, 17 do
    names[#names + 1] = 'w' .. place .. '\0' .. string.sub(directory, at, at + 15)
  end
  for first = 1, #names, CHUNK do
    for _, value in ipairs(fields(names, first, math.min(first + CHUNK - 1, #names))) do
      if value and (not wanted or wanted[struct.unpack('>I4c0', value)]) then
        found[#found + 1] = value
      end
    end
  end
end

local function spans_of_row(value)
  local _, _, _, spans = struct.unpack('>dI4c0I4c0I4c0', value)
  return spans
end

local function spans_of_write(value)
  local _, _, _, _, spans = struct.unpack('>I4c0I4c0I4c0i4I4c0', value)
  return spans
end

-- Whether the pack reaches the item `first`. Where the numbers are too large to tell, it may.
local function reaches(member, first)
  local high, low, count = struct.unpack('>I4I4I4', string.sub(member, 10))
  local wanted_high, wanted_low = struct.unpack('>I4I4', first)
  return wanted_high >= 2097152 or high * 4294967296 + low + count > wanted_high * 4294967296 + wanted_low
end

local function successor(first)
  local high, low = struct.unpack('>I4I4', first)
  if low == 4294967295 then
    return struct.pack('>I4I4', high + 1, 0)
  end
  return struct.pack('>I4I4', high, low + 1)
end

-- Adds to `names` the members of the packs that overlap `spans`: groups of a writer, a number of spans, and for each its
-- first item and the one after its last. What would be too much for one script is added to `rest`, as spans. Of the packs that
-- begin before a span, only the nearest one is looked at, unless `thoroughly`.
local function find_packs(spans, names, rest, thoroughly)
  local at = 1
  while at <= #spans do
    local writer, count
    writer, count, at = struct.unpack('>c8I4', spans, at)
    local stem = 'p' .. writer
    for left = count, 1, -1 do
      if #names >= PACKS then
        rest[#rest + 1] = struct.pack('>c8I4', writer, left) .. string.sub(spans, at)
        return
      end
      local first, past
      first, past, at = struct.unpack('c8c8', spans, at)
      local least = stem .. first
      local room = PACKS - #names + 1
      local found = call('ZRANGEBYLEX', ORDER, '[' .. least, '(' .. stem .. past, 'LIMIT', 0, room)
      if thoroughly then
        for _, before in ipairs(call('ZRANGEBYLEX', ORDER, '[' .. stem, '(' .. least)) do
          if reaches(before, first) and not names[before] then
            names[before] = true
            names[#names + 1] = before
          end
        end
      elseif not found[1] or string.sub(found[1], 1, 17) ~= least then
        local before = call('ZREVRANGEBYLEX', ORDER, '(' .. least, '[' .. stem, 'LIMIT', 0, 1)[1]
        if before and reaches(before, first) and not names[before] then
          names[before] = true
          names[#names + 1] = before
        end
      end
      for _, member in ipairs(found) do
        if not names[member] then
          names[member] = true
          names[#names + 1] = member
        end
      end
      if #found == room then
        first = string.sub(found[room], 10, 17)
        rest[#rest + 1] = struct.pack('>c8I4', writer, left) .. first .. past .. string.sub(spans, at)
        return
      end
    end
  end
end

-- Members and data of packs, and how many of the members are among them: as many as one script may hand out.
local function read_packs(members)
  local packs, bytes = {}, 0
  for first = 1, #members, CHUNK do
    local last = math.min(first + CHUNK - 1, #members)
    local names = {}
    for at = first, last do
      names[#names + 1] = string.sub(members[at], 1, 17)
    end
    for number, data in ipairs(fields(names, 1, #names)) do
      if data then
        packs[#packs + 1] = members[first + number - 1]
        packs[#packs + 1] = data
        bytes = bytes + #data
      end
    end
    if bytes > BYTES and last < #members then
      return packs, last
    end
  end
  return packs, #members
end

-- The packs of `members`, and as spans what was not read of them and what `rest` has.
local function hand_out(members, rest)
  local packs, read = read_packs(members)
  for at = read + 1, #members do
    local first = string.sub(members[at], 10, 17)
    rest[#rest + 1] = struct.pack('>c8I4', string.sub(members[at], 2, 9), 1) .. first .. successor(first)
  end
  return packs, table.concat(rest)
end
