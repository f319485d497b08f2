-- Checkpoints with their writes and, if asked, their packs: the latest of a namespace, or those named.
-- uses: _thread _reading
-- ARGV: ttl, generation that the thread must be at or '', 1 if packs are wanted, then 'latest' and ns, or 'named' and
--       the places (ns NUL id)

local ttl, generation, wants, mode = unpack(ARGV, 1, 4)
local head, trouble = open()
if trouble then
  return {trouble}
end
if not head then
  return {'none'}
end
if generation ~= '' and generation ~= head.generation then
  return {'stale'}
end
local places = {}
if mode == 'latest' then
  local member = latest(ARGV[5])
  if member then
    local ns, _, id = named(member)
    places[1] = ns .. '\0' .. id
  end
else
  for at = 5, #ARGV do
    places[#places + 1] = ARGV[at]
  end
end
local snapshots, members, rest = {}, {}, {}
for _, place in ipairs(places) do
  local row = call('HGET', DATA, 'r' .. place)
  if row then
    local snapshot = {place, row}
    writes_of(place, snapshot)
    if wants == '1' then
      find_packs(spans_of_row(row), members, rest)
      for at = 3, #snapshot do
        find_packs(spans_of_write(snapshot[at]), members, rest)
      end
    end
    snapshots[#snapshots + 1] = snapshot
  elseif mode == 'latest' then
    return {'lost'}
  end
end
if head.waits == 0 then
  expire(ttl)
end
return {'ok', head.generation, snapshots, hand_out(members, rest)}
