-- Everything of a thread, in one part if that is not too much: checkpoints and writes without one, each with its writes,
-- and packs.
-- uses: _thread _reading _walking
-- ARGV: what is still to come, of k (checkpoints), q (writes without one) and p (packs); the member of the first of them
--       after which to begin or ''; limit; 1 if the data of packs is wanted, else their sizes come

local kinds, after, limit, wants = unpack(ARGV, 1, 4)
local head, trouble = open()
if trouble then
  return {trouble}
end
if not head then
  return {'none'}
end
local snapshots, packs = {}, {}
kinds, after = walk(kinds, after, tonumber(limit), function(kind, members)
  if kind == 'p' and wants == '1' then
    local read
    packs, read = read_packs(members)
    return read
  end
  if kind == 'p' then
    weigh_packs(members, packs)
    return
  end
  for _, member in ipairs(members) do
    local place = string.sub(member, 2)
    if kind == 'k' then
      local ns, _, id = named(member)
      place = ns .. '\0' .. id
    end
    local snapshot = {place, kind == 'k' and call('HGET', DATA, 'r' .. place) or ''}
    writes_of(place, snapshot)
    snapshots[#snapshots + 1] = snapshot
  end
end)
return {'ok', token(head), snapshots, packs, kinds, after}
