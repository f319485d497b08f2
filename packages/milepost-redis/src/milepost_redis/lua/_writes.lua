-- How pending writes are kept: each in its slot (task and position), first-wins unless it is special.

local SLOT = 17

local function flag_at(directory, slot, flag)
  for at = 1, #directory, SLOT do
    if string.sub(directory, at, at + SLOT - 2) == slot then
      return string.sub(directory, 1, at + SLOT - 2) .. flag .. string.sub(directory, at + SLOT)
    end
  end
  return directory .. slot .. flag
end

-- Keeps one write of a checkpoint, if its place allows that, with its pack. Answers whether it counts as accepted, and
-- the new directory.
local function keep_write(head, place, directory, slot, flag, special, value, member, data)
  local field = 'w' .. place .. '\0' .. slot
  local held = call('HGET', DATA, field)
  if held and not special then
    return held == value and (member == '' or call('HEXISTS', DATA, string.sub(member, 1, 17)) == 1), directory
  end
  call('HSET', DATA, field, value)
  if held then
    head.bytes = head.bytes - #held
    directory = flag_at(directory, slot, flag)
  else
    head.writes = head.writes + 1
    directory = directory .. slot .. flag
  end
  head.bytes = head.bytes + #value
  if member ~= '' then
    keep_pack(head, member, data)
  end
  return true, directory
end

local function keep_directory(place, before, directory)
  if directory ~= before then
    call('HSET', DATA, 'd' .. place, directory)
    if before == '' and call('HEXISTS', DATA, 'r' .. place) == 0 then
      call('ZADD', ORDER, 0, 'q' .. place)
    end
  end
end

-- Removes all writes of a checkpoint.
local function forget_writes(head, place)
  local directory = call('HGET', DATA, 'd' .. place)
  if directory then
    for slot = 1, #directory, SLOT do
      local field = 'w' .. place .. '\0' .. string.sub(directory, slot, slot + SLOT - 2)
      head.bytes = head.bytes - call('HSTRLEN', DATA, field)
      head.writes = head.writes - call('HDEL', DATA, field)
    end
    call('HDEL', DATA, 'd' .. place)
    call('ZREM', ORDER, 'q' .. place)
  end
end
