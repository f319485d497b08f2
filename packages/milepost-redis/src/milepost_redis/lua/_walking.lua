-- How the scripts go through a thread which tell of all that it holds.

-- Hands to `visit` the members of `kinds` (k: checkpoints, q: writes without one, p: packs), each kind with some of its
-- members, `room` of them at most: from the first one on, or behind `after`. `visit` may answer that it took only so many,
-- and that is then the end. Returns what is still to come in these terms.
local function walk(kinds, after, room, visit)
  while kinds ~= '' and room > 0 do
    local kind = string.sub(kinds, 1, 1)
    local members = call('ZRANGEBYLEX', ORDER, after ~= '' and '(' .. after or '[' .. kind, past(kind), 'LIMIT', 0, room)
    local taken = visit(kind, members) or #members
    local more = #members == room
    room = room - #members
    if taken < #members then
      more, room = true, 0
    end
    after = members[taken]
    if not more then
      kinds, after = string.sub(kinds, 2), ''
    end
  end
  return kinds, after or ''
end

-- Of packs the members and the bytes, in turn, behind those that are there.
local function weigh_packs(members, packs)
  for _, member in ipairs(members) do
    packs[#packs + 1] = member
    packs[#packs + 1] = call('HSTRLEN', DATA, string.sub(member, 1, 17))
  end
end
